"""What ``load`` holds for a run, and what the run would refuse there: for ``--check`` and the doctor."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import with_place


@dataclass(frozen=True)
class LoadFacts:
    """Attributes:
    text: what was found, for people.
    refusal: what the run would say and end with; empty where it would start.
    """

    text: str
    refusal: str = ""


def load_facts(
    args: NeoXArgs, *, ranks: int, nodes: int, is_first: bool = True
) -> LoadFacts | None:
    """What ``load`` holds for a run on ``ranks`` ranks of ``nodes`` nodes; None where it is not set, and
    ``save`` holds nothing that the run would replace.

    ``is_first``: this host is the first of them. What another one has on its own disk, nobody sees here.
    """
    settings = args.checkpointing
    load = settings.load
    if load is None and not (settings.save and os.path.lexists(settings.save)):
        return None
    if settings.use_node_local_storage and nodes > 1 and not is_first:
        return LoadFacts(
            f"{load or settings.save}: on the disks of the run's own nodes: not looked at here"
        )
    top = _absent_top(load) if load is not None else None
    if top is not None and not is_first:
        return LoadFacts(
            f"{load}: there is no {top} on this host, which is not the run's first: not looked at here"
        )
    fresh = LoadFacts(f"{load}: no checkpoint yet: the run starts from step 0")
    needs_one = settings.finetune or settings.iteration is not None
    if not needs_one and not any(map(os.path.lexists, filter(None, _folders(args)))):
        return fresh
    # It imports torch, which takes seconds: where there is something to look at.
    from megatron.checkpointing.foresee_start import foresee_start  # noqa: PLC0415
    from megatron.optimizers.lr_schedule import LRSchedule  # noqa: PLC0415

    schedule, steps = None, args.training.train_iters
    if steps is not None:  # else the data says how many
        schedule = LRSchedule.of(args.lr_schedule, lr=args.optim.lr, train_iters=steps).as_dict()
    seen = foresee_start(args, ranks=ranks, nodes=nodes, schedule=schedule)
    refusal = with_place(args, seen.refusal, (seen.key,))
    if load is None:
        return LoadFacts("not set: the run starts from step 0", refusal) if refusal else None
    if seen.found is None:
        return LoadFacts(f"{load}: cannot be used", refusal) if refusal else fresh
    takes = "; its weights alone are taken (finetune)" if settings.finetune else ""
    return LoadFacts(f"{seen.found.path}: {seen.found.form}{takes}", refusal)


def _absent_top(path: str) -> str | None:
    """The folder below the root that ``path`` leads through, where this host has no such mount."""
    top = Path(*Path(path).absolute().parts[:2])
    return None if os.path.lexists(top) else str(top)


def _folders(args: NeoXArgs) -> tuple[str | None, ...]:
    return args.checkpointing.load, args.checkpointing.save
