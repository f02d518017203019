"""Which checkpoint a run starts from, looked for before anything slow is done."""

from __future__ import annotations

from megatron.checkpointing.find import find_checkpoint
from megatron.checkpointing.looking import CheckpointInfo
from megatron.errors import CheckpointError
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
    elif settings.finetune:
        raise CheckpointError(
            f"load: {load} holds no checkpoint\n"
            "  expected: the weights to start from, because of finetune: true\n"
            "  to do: set load to a folder with checkpoints",
            everywhere=True,
        )
    elif settings.save in (None, load):
        log.info("no checkpoint in %s yet: starting from step 0", load)
    elif world.is_first:
        log.warning(
            "load: no checkpoint in %s: starting from step 0 (save is another folder: %s)",
            load,
            settings.save,
        )
    return found
