"""A run must not replace checkpoints of another one, or those of an earlier start of its own."""

from __future__ import annotations

import os
from pathlib import Path

from megatron.checkpointing import folders
from megatron.checkpointing.looking import CheckpointInfo, steps_with_manifest
from megatron.checkpointing.together import together
from megatron.errors import CheckpointError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World


def refuse_to_replace(
    args: NeoXArgs, found: CheckpointInfo | None, world: World, *, train_iters: int | None
) -> None:
    """Stop a run from ``found`` that would save among checkpoints that it does not go on from.

    Going on in the folder that it was loaded from it may: also behind its last step. All ranks call this.

    Args:
        args: the configuration.
        found: what the run starts from; None for nothing.
        world: all ranks.
        train_iters: steps of the run; None where only the data says how many.

    Raises:
        CheckpointError: on every rank.
    """
    settings = args.checkpointing
    save, finetune = settings.save, settings.finetune
    if save is None or args.training.do_train is False:
        return
    if found is not None and not finetune and _is_same(settings.load, save):
        return
    begins = 0 if found is None or finetune else found.step
    if train_iters is not None and begins >= train_iters:
        return  # it is done, and saves nothing
    root = Path(save)
    looks = world.is_local_first if settings.use_node_local_storage else world.is_first
    sees = _steps_there if found is None else steps_with_manifest
    there = together(world, (lambda: sees(root)) if looks else None)
    steps = sorted({step for seen in there for step in seen or ()})
    # Those behind the step it starts from stay, unless old ones are removed, or it starts from nothing.
    stay = found is not None and settings.keep_last_n_checkpoints is None
    endangered = [step for step in steps if step > begins or not stay]
    if not endangered:
        return
    newest = folders.step_name(endangered[-1])
    if found is None:
        what = f"starts from step 0, because {_why_from_nothing(settings.load)}"
    else:
        what = f"starts from {found.path}" + (" at step 0 (finetune: true)" if finetune else "")
    raise CheckpointError(
        f"save: {save} holds {newest}, which this run does not go on from\n"
        f"  found: {len(steps)} checkpoint(s) there; this run {what}: its own would go among "
        "them, or replace them\n"
        f"  to do: set load to {save}{', and finetune: false,' if finetune else ''} to go on from there; "
        "else set save to a new folder, or move these away",
        everywhere=True,
    )


def _steps_there(root: Path) -> tuple[int, ...]:
    """Those of our checkpoints, and of the one that ``latest`` names, perhaps GPT-NeoX's.

    Where a run starts from nothing. One that goes on from something may stand beside GPT-NeoX's checkpoint.
    """
    named = folders.step_of(folders.read_latest(root) or "")
    return (*steps_with_manifest(root), *(() if named is None else (named,)))


def _why_from_nothing(load: str | None) -> str:
    return "load is not set" if load is None else f"load: {load} holds no checkpoint"


def _is_same(load: str | None, save: str) -> bool:
    return load is not None and os.path.realpath(load) == os.path.realpath(save)
