"""Which checkpoint a run would start from, and whether it could, seen before it: for checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from megatron.checkpointing.find_start import find_start
from megatron.checkpointing.fitting import require_fit
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import EngineFacts
from megatron.checkpointing.others_work import refuse_to_replace
from megatron.checkpointing.same_model import check_same_model
from megatron.checkpointing.same_schedule import check_same_schedule
from megatron.errors import NeoXError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World


@dataclass(frozen=True)
class Foreseen:
    """Attributes:
    found: the checkpoint that a run would start from; None for none, or one that is not whole.
    refusal: what the run would say and end with; empty where it would start.
    key: of the configuration, which the refusal is about.
    """

    found: CheckpointInfo | None
    refusal: str = ""
    key: Literal["load", "save"] = "load"


def foresee_start(
    args: NeoXArgs, *, ranks: int, nodes: int, schedule: Mapping[str, Any] | None = None
) -> Foreseen:
    """What a run on ``ranks`` ranks of ``nodes`` nodes would start from, seen from the first of these.

    As far as the checkpoint's own facts tell: its weights are not read, and what depends on the data or the
    tokenizer is left to the run. So is the ``schedule`` of the learning rate where it is not known yet.
    """
    found = None
    key: Literal["load", "save"] = "load"
    try:
        world = World(num_nodes=nodes)
        found = find_start(args, world)
        key = "save"
        refuse_to_replace(args, found, world, train_iters=args.training.train_iters)
        key = "load"
        if found is not None:
            _require_fit(found, args, ranks, schedule)
    except NeoXError as error:
        return Foreseen(found, str(error), key)
    return Foreseen(found)


def _require_fit(
    found: CheckpointInfo, args: NeoXArgs, ranks: int, schedule: Mapping[str, Any] | None
) -> None:
    settings = args.checkpointing
    check_same_model(found, args.model, finetune=settings.finetune)
    if settings.finetune or found.manifest is None:
        return  # its weights alone are read, which any layout does
    if schedule is not None:
        check_same_schedule(found, schedule, args.lr_schedule)
    require_fit(
        found,
        facts_of_run(args, ranks),
        load_optim=not settings.no_load_optim,
        may_reshape=settings.reshape_on_load,
    )


def facts_of_run(args: NeoXArgs, ranks: int) -> EngineFacts:
    """What the files of a run on ``ranks`` ranks will depend on."""
    layout = args.parallelism
    return EngineFacts(
        world_size=ranks,
        data_parallel_size=ranks
        // (layout.model_parallel_size * max(1, layout.pipe_parallel_size)),
        model_parallel_size=layout.model_parallel_size,
        pipe_parallel_size=layout.pipe_parallel_size,
        zero_stage=args.optim.zero_stage,
        precision=args.model.precision,
    )
