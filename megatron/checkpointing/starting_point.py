"""Which checkpoint a run starts from, looked for before anything slow is done, or before the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.checkpointing.find import find_checkpoint
from megatron.checkpointing.fitting import require_fit
from megatron.checkpointing.folders import read_latest
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import EngineFacts
from megatron.checkpointing.others_work import refuse_to_replace
from megatron.checkpointing.same_model import check_same_model
from megatron.checkpointing.same_schedule import check_same_schedule
from megatron.errors import CheckpointError, NeoXError
from megatron.logging import get_logger
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World

log = get_logger(__name__)


def find_start(args: NeoXArgs, world: World) -> CheckpointInfo | None:
    """The checkpoint that the run starts from; None where it starts from nothing. All ranks call this.

    Raises:
        CheckpointError: what is there is not whole, or a fine-tuning has nothing to start from.
    """
    settings = args.checkpointing
    load = settings.load
    if load is None:
        return None
    found = find_checkpoint(
        load,
        settings.iteration,
        world=world,
        foreign=settings.finetune,
        neox=True,
        continues=not (settings.finetune or settings.no_load_optim),
        node_local=settings.use_node_local_storage,
    )
    if found is not None:
        args.check_runtime(iteration=found.step)
    elif args.checkpointing.finetune:
        raise CheckpointError(
            f"load: {load} holds no checkpoint\n"
            "  expected: the weights to start from, because of finetune: true\n"
            "  to do: set load to a folder with checkpoints",
            everywhere=True,
        )
    elif settings.save in (None, load):
        log.info("no checkpoint in %s yet: starting from step 0", load)
    elif latest := world.broadcast(read_latest(Path(settings.save))):
        raise CheckpointError(
            f"load: {load} holds no checkpoint, and save, which is another folder, holds {latest}\n"
            f"  found: save: {settings.save}; a run from step 0 would put its checkpoints among those\n"
            "  to do: set load to the folder to go on from, or save to a new one",
            everywhere=True,
        )
    elif world.is_first:
        log.warning(
            "load: no checkpoint in %s: starting from step 0 (save is another folder: %s)",
            load,
            args.checkpointing.save,
        )
    return found


@dataclass(frozen=True)
class Foreseen:
    """Attributes:
    found: the checkpoint that a run would start from; None for none, or one that is not whole.
    refusal: what the run would say and end with; empty where it would start.
    """

    found: CheckpointInfo | None
    refusal: str = ""


def foresee_start(
    args: NeoXArgs, *, ranks: int, nodes: int, schedule: Mapping[str, Any] | None = None
) -> Foreseen:
    """What a run on ``ranks`` ranks of ``nodes`` nodes would start from, seen from the first of these.

    As far as the checkpoint's own facts tell: its weights are not read, and what depends on the data or the
    tokenizer is left to the run. So is the ``schedule`` of the learning rate where it is not known yet.
    """
    found = None
    try:
        world = World(num_nodes=nodes)
        found = find_start(args, world)
        refuse_to_replace(args, found, world, train_iters=args.training.train_iters)
        if found is not None:
            _require_fit(found, args, ranks, schedule)
    except NeoXError as error:
        return Foreseen(found, str(error))
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
