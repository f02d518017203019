"""Continue a run: DeepSpeed's own loader, once it is known that it can succeed.

DeepSpeed unpickles its files freely and asserts in the middle of loading. So only a folder with our
manifest, found whole by :func:`megatron.checkpointing.find.find_checkpoint`, gets here, and what the
files depend on is compared first.

The optimizer's files also hold its settings (weight decay, betas, eps) and would bring them back: a
key changed for the rest of a run would have no effect. Its state is loaded, its settings are kept. The
same goes for clipping, and for the loss scaling of fp16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron.checkpointing.deepspeed_files import engine_facts, model_under
from megatron.checkpointing.find import CheckpointInfo
from megatron.checkpointing.layer_files import holds_parts
from megatron.checkpointing.manifest import EngineFacts
from megatron.checkpointing.together import describe, together
from megatron.checkpointing.weights import BROKEN_FILE, check_weights_fit, load_weights
from megatron.errors import CheckpointError
from megatron.runtime.stock_deepspeed import Engine
from megatron.runtime.world import World

# How a user sets what the engine calls so.
_KEYS = {"data_parallel_size": "data_parallel_size x context_parallel_size"}


def load_checkpoint(
    engine: Engine, info: CheckpointInfo, *, world: World, load_optim: bool = True
) -> dict[str, Any]:
    """Put ``engine`` into the state of the checkpoint. All ranks call this.

    Args:
        engine: DeepSpeed's engine, built for the same model.
        info: from :func:`find_checkpoint`.
        world: this process's place.
        load_optim: load the optimizer's state too. Without it the fp32 copy of the weights is made
            from the loaded weights, and any number of data-parallel ranks will do.

    Returns:
        The ``state`` that :func:`save_checkpoint` was given.

    Raises:
        CheckpointError: on every rank, when the checkpoint does not fit this run or cannot be read
            on some rank.
    """
    manifest = info.manifest
    if manifest is None:
        raise CheckpointError(
            f"{info.path} has no manifest: its weights can be read (finetune: true), but a run "
            "cannot be continued from it",
            everywhere=True,
        )
    now = engine_facts(engine, world.size)
    misfit = _misfit(manifest.engine, now, load_optim, manifest.has_optimizer)
    if misfit:
        raise CheckpointError(f"{info.path} does not fit this run\n{misfit}", everywhere=True)
    by_name = holds_parts(engine) or manifest.engine.pipe_parallel_size != now.pipe_parallel_size
    if not by_name:
        together(world, lambda: _load(engine, info, load_optim))
    elif load_optim:
        # DeepSpeed would compare nothing: in its files of weights there are only places for parts.
        together(world, lambda: check_weights_fit(engine.module, info, engine.mp_world_size))
        together(world, lambda: _load(engine, info, load_optim))
    else:
        # DeepSpeed would join the optimizer's files on every rank, and for one model rank only; or look
        # for the weights in files of its own form.
        load_weights(
            model_under(engine),
            info,
            model_rank=engine.checkpoint_mp_rank % now.model_parallel_size,
            model_parallel_size=now.model_parallel_size,
            engine=engine,
            world=world,
        )
        engine.global_steps = info.step
    return info.state


def _load(engine: Engine, info: CheckpointInfo, load_optim: bool) -> None:
    try:
        with _settings_kept(engine):
            path, _ = engine.load_checkpoint(
                str(info.path.parent), tag=info.path.name, load_optimizer_states=load_optim
            )
    except (*BROKEN_FILE, AssertionError) as error:  # DeepSpeed asserts that files exist
        if "loading state_dict" in str(error):
            # The files are in order, but of another model: which weights differ says more.
            ranks = engine_facts(engine, 1).model_parallel_size
            check_weights_fit(model_under(engine), info, ranks)
        raise CheckpointError(
            f"{info.path} cannot be loaded\n  found: {describe(error)}\n"
            "  to do: restore it, or choose another step with --iteration N"
        ) from error
    if path is None or engine.global_steps != info.step:
        raise CheckpointError(
            f"{info.path}: DeepSpeed found nothing to load there"
            if path is None
            else f"{info.path} holds step {engine.global_steps}; expected {info.step}"
        )


@contextmanager
def _settings_kept(engine: Engine) -> Iterator[None]:
    """Within the block the optimizer may get other settings; at its end it has those from before."""
    optimizer = engine.optimizer
    kept = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    own = {name: getattr(optimizer, name, None) for name in ("clip_grad", "loss_scaler")}
    yield
    # Asked for again: loading replaces the groups, not their content.
    for group, settings in zip(optimizer.param_groups, kept, strict=True):
        group.update(settings)
    if own["clip_grad"] is not None:
        optimizer.clip_grad = own["clip_grad"]
    if own["loss_scaler"] is not None:
        _continue_scaling(own["loss_scaler"], optimizer.loss_scaler)
        optimizer.loss_scaler = own["loss_scaler"]
        optimizer.dynamic_loss_scale = own["loss_scaler"].dynamic


def _continue_scaling(ours: Any, stored: Any) -> None:
    """Put DeepSpeed's loss scaler ``ours`` where ``stored`` was, as far as both follow overflows."""
    if not (ours.dynamic and stored.dynamic):
        return
    for name in ("cur_iter", "last_overflow_iter"):
        setattr(ours, name, getattr(stored, name))
    ours.cur_hysteresis = min(stored.cur_hysteresis, ours.delayed_shift)
    ours.cur_scale = max(stored.cur_scale, ours.min_scale)


def _misfit(
    saved: EngineFacts, now: EngineFacts, load_optim: bool, has_optimizer: bool
) -> str | None:
    """Why DeepSpeed could not load files of ``saved`` into an engine of ``now``; None if it can."""
    if saved.model_parallel_size != now.model_parallel_size:
        return (
            f"  found: weights split among model_parallel_size {saved.model_parallel_size}\n"
            f"  expected: {now.model_parallel_size}, as this run has\n"
            f"  to do: start it with model_parallel_size: {saved.model_parallel_size}"
        )
    if not load_optim:
        return None
    to_do = (
        "  to do: start it as it was, or go on from the weights alone with no_load_optim: true "
        "(same step) or finetune: true (from step 0)"
    )
    if not has_optimizer:
        return f"  found: no optimizer state, it was saved with no_save_optim\n{to_do}"
    compared = ["pipe_parallel_size", "zero_stage", "precision"]
    if saved.zero_stage > 0:
        # Each rank's file holds its part of the optimizer's state.
        compared.append("data_parallel_size")
    differing = [name for name in compared if getattr(saved, name) != getattr(now, name)]
    if not differing:
        return None
    listing = "; ".join(
        f"{_KEYS.get(name, name)} {getattr(saved, name)}, this run has {getattr(now, name)}"
        for name in differing
    )
    return f"  found: optimizer state of {listing}\n{to_do}"
