"""Whether a run can go on from a checkpoint: what it holds, and the layout that wrote it.

Asked when it is loaded, and before a start.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import EngineFacts, Manifest
from megatron.checkpointing.parts import gathering
from megatron.errors import CheckpointError

# How a user sets what the engine calls so.
_KEYS = {"data_parallel_size": "data_parallel_size x context_parallel_size"}


def require_fit(
    info: CheckpointInfo, now: EngineFacts, *, load_optim: bool, may_reshape: bool
) -> tuple[Manifest, dict[str, Any]]:
    """Refuse what a run cannot go on from.

    Args:
        info: the checkpoint.
        now: what the files of the run that is to go on depend on.
        load_optim: the optimizer's state is to be loaded too.
        may_reshape: it may be loaded from another layout (``reshape_on_load``).

    Returns:
        What the checkpoint says of itself, and in what its layout is another one: name → (then, now).

    Raises:
        CheckpointError: on every rank, when it does not fit this run.
    """
    manifest = _manifest_to_continue(info, load_optim)
    different = _differences(manifest.engine, now, load_optim)
    if different and manifest.whole is None and not may_reshape:
        raise CheckpointError(
            f"{info.path} does not fit this run\n{_misfit(info, different)}", everywhere=True
        )
    return manifest, different


def _manifest_to_continue(info: CheckpointInfo, load_optim: bool) -> Manifest:
    """What a checkpoint says of itself that a run can go on from; raises for any other."""
    manifest = info.manifest
    if manifest is None:
        raise CheckpointError(
            f"{info.path} has no manifest: its weights can be read (finetune: true), but a run "
            "cannot be continued from it",
            everywhere=True,
        )
    if load_optim and not manifest.has_optimizer:
        raise CheckpointError(
            f"{info.path} does not fit this run\n"
            f"  found: no optimizer state, it was saved with no_save_optim\n  to do: {_FROM_WEIGHTS}",
            everywhere=True,
        )
    return manifest


_FROM_WEIGHTS = (
    "start it as it was, or go on from the weights alone with no_load_optim: true (same step) or "
    "finetune: true (from step 0)"
)


def _differences(saved: EngineFacts, now: EngineFacts, load_optim: bool) -> dict[str, Any]:
    """What DeepSpeed's files of ``saved`` depend on and is otherwise now: name → (then, now)."""
    compared = ["model_parallel_size"]
    if load_optim:
        compared += ["pipe_parallel_size", "zero_stage", "precision"]
        if saved.zero_stage > 0:
            # Each rank's file holds its part of the optimizer's state.
            compared.append("data_parallel_size")
    both = {name: (getattr(saved, name), getattr(now, name)) for name in compared}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def refusal(
    found: CheckpointInfo, what: str, changed: Sequence[str], remedy: str
) -> CheckpointError:
    """Why a run may not go on from ``found``, the same on all ranks: ``changed`` says then and now."""
    lines = "\n".join(f"    {line}" for line in changed)
    return CheckpointError(
        f"{found.path}: {what}\n  checkpoint → configuration:\n{lines}\n  to do: {remedy}",
        everywhere=True,
    )


def differences_text(different: dict[str, Any]) -> str:
    """What :func:`require_fit` has found, for people."""
    return "; ".join(
        f"{_KEYS.get(name, name)} {then}, this run has {now}"
        for name, (then, now) in different.items()
    )


def _misfit(info: CheckpointInfo, different: dict[str, Any]) -> str:
    manifest = info.manifest
    if manifest is not None and manifest.node_local and len(manifest.disks) > 1:
        return (
            f"  found: files of {differences_text(different)}, on the disks of {len(manifest.disks)} nodes\n"
            f"  to do: start it as it was; or {gathering(info.path, len(manifest.disks))}, then "
            "reshape_on_load: true fits it to this run"
        )
    root = shlex.quote(str(info.path.parent))
    whole = shlex.quote(f"{info.path.parent}-whole")
    return (
        f"  found: files of {differences_text(different)}\n"
        "  to do: set reshape_on_load: true, which fits it to this run, or turn it once into a form for "
        f"every layout and set load: {whole}\n"
        f"    python tools/ckpts/reshard.py --load {root} --iteration {info.step} --save {whole}"
    )
