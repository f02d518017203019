"""Which checkpoint a run would start from, and what it would refuse there: for ``--check`` and the doctor."""

from __future__ import annotations

import os
from dataclasses import dataclass

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import with_place


@dataclass(frozen=True)
class StartPoint:
    """Attributes:
    text: what was found, for people.
    refusal: what the run would say and end with; empty where it would start.
    """

    text: str
    refusal: str = ""


def start_point(args: NeoXArgs, *, ranks: int, nodes: int) -> StartPoint | None:
    """What ``load`` holds for a run on ``ranks`` ranks of ``nodes`` nodes; None where it is not set."""
    settings = args.checkpointing
    if settings.load is None:
        return None
    fresh = StartPoint(f"{settings.load}: no checkpoint yet: the run starts from step 0")
    if not settings.finetune and not any(map(os.path.lexists, filter(None, _folders(args)))):
        return fresh
    # It imports torch, which takes seconds: where there is something to look at.
    from megatron.checkpointing.starting_point import foresee_start  # noqa: PLC0415

    seen = foresee_start(args, ranks=ranks, nodes=nodes)
    refusal = with_place(args, seen.refusal, ("load",))
    if seen.found is None:
        return StartPoint(f"{settings.load}: cannot be used", refusal) if refusal else fresh
    takes = "; its weights alone are taken (finetune)" if settings.finetune else ""
    return StartPoint(f"{seen.found.path}: {seen.found.form}{takes}", refusal)


def _folders(args: NeoXArgs) -> tuple[str | None, ...]:
    return args.checkpointing.load, args.checkpointing.save
