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


def start_point(
    args: NeoXArgs, *, ranks: int, nodes: int, is_first: bool = True
) -> StartPoint | None:
    """What ``load`` holds for a run on ``ranks`` ranks of ``nodes`` nodes; None where it is not set, and
    ``save`` holds nothing that the run would replace.

    ``is_first``: this host is the first of them. What another one has on its own disk, nobody sees here.
    """
    settings = args.checkpointing
    load = settings.load
    if load is None and not (settings.save and os.path.lexists(settings.save)):
        return None
    if settings.use_node_local_storage and nodes > 1 and not is_first:
        return StartPoint(
            f"{load or settings.save}: on the disks of the run's own nodes: not looked at here"
        )
    fresh = StartPoint(f"{load}: no checkpoint yet: the run starts from step 0")
    needs_one = settings.finetune or settings.iteration is not None
    if not needs_one and not any(map(os.path.lexists, filter(None, _folders(args)))):
        return fresh
    # It imports torch, which takes seconds: where there is something to look at.
    from megatron.checkpointing.starting_point import foresee_start  # noqa: PLC0415
    from megatron.optimizers.lr_schedule import LRSchedule  # noqa: PLC0415

    schedule, steps = None, args.training.train_iters
    if steps is not None:  # else the data says how many
        schedule = LRSchedule.of(args.lr_schedule, lr=args.optim.lr, train_iters=steps).as_dict()
    seen = foresee_start(args, ranks=ranks, nodes=nodes, schedule=schedule)
    is_about_save = seen.refusal.startswith("save: ")
    refusal = with_place(args, seen.refusal, ("save",) if is_about_save else ("load",))
    if load is None:
        return StartPoint("not set: the run starts from step 0", refusal) if refusal else None
    if seen.found is None:
        return StartPoint(f"{load}: cannot be used", refusal) if refusal else fresh
    takes = "; its weights alone are taken (finetune)" if settings.finetune else ""
    return StartPoint(f"{seen.found.path}: {seen.found.form}{takes}", refusal)


def _folders(args: NeoXArgs) -> tuple[str | None, ...]:
    return args.checkpointing.load, args.checkpointing.save
