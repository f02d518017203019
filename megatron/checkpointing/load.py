"""Continue a run: DeepSpeed's own loader where the layout is the same, else our own.

DeepSpeed unpickles its files freely and asserts in the middle of loading. So only a folder with our
manifest, found whole by :func:`megatron.checkpointing.find.find_checkpoint`, gets here, and what the
files depend on is compared first.

A checkpoint of another layout (ranks, ZeRO stage, precision) is loaded a parameter at a time by
:mod:`megatron.checkpointing.universal_load` where the user asks for that, and always one that has no layout.

The optimizer's files also hold its settings (weight decay, betas, eps) and would bring them back: a
key changed for the rest of a run would have no effect. Its state is loaded, its settings are kept. The
same goes for clipping, and for the loss scaling of fp16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from megatron.checkpointing.deepspeed_files import engine_facts, model_under
from megatron.checkpointing.fitting import differences_text, require_fit
from megatron.checkpointing.layer_files import holds_parts
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import EngineFacts
from megatron.checkpointing.tensor_files import BROKEN_FILE
from megatron.checkpointing.together import describe, together
from megatron.checkpointing.universal_engines import (
    base_optimizer,
    continue_scaling,
    require_own_states,
)
from megatron.checkpointing.universal_load import load_reshaped
from megatron.checkpointing.weights import check_weights_fit, load_weights
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.mpu import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.stock_deepspeed import Engine
from megatron.runtime.world import World

log = get_logger(__name__)


@dataclass(frozen=True)
class Reshaping:
    """What loading from another layout needs to know.

    Attributes:
        model: the model's section of the configuration.
        groups: the layout of this run.
        allowed: whether ``reshape_on_load`` is set. A layout-free checkpoint may always be loaded.
    """

    model: ModelArgs
    groups: ParallelGroups
    allowed: bool = False


def load_checkpoint(
    engine: Engine,
    info: CheckpointInfo,
    *,
    world: World,
    load_optim: bool = True,
    reshaping: Reshaping | None = None,
) -> dict[str, Any]:
    """Put ``engine`` into the state of the checkpoint. All ranks call this.

    Args:
        engine: DeepSpeed's engine, built for the same model.
        info: from :func:`find_checkpoint`.
        world: this process's place.
        load_optim: load the optimizer's state too. Without it the fp32 copy of the weights is made
            from the loaded weights, and any number of data-parallel ranks will do.
        reshaping: how to load from another layout; without it only the layout that saved will do.

    Returns:
        The ``state`` that :func:`save_checkpoint` was given.

    Raises:
        CheckpointError: on every rank, when the checkpoint does not fit this run or cannot be read
            on some rank.
    """
    now = engine_facts(engine, world.size)
    may_reshape = reshaping is not None and reshaping.allowed
    manifest, different = require_fit(info, now, load_optim=load_optim, may_reshape=may_reshape)
    # As many stages may hold other layers (pipe_partition_method), which the facts do not tell.
    may_differ = bool(different) or now.pipe_parallel_size > 1
    if manifest.whole is not None or (may_differ and may_reshape):
        assert reshaping is not None, "a layout-free checkpoint is loaded a parameter at a time"
        load_reshaped(
            engine, info, model=reshaping.model, groups=reshaping.groups, load_optim=load_optim
        )
        log.info(
            "reshaped %s: %s",
            info.path.name,
            differences_text(different) or "a parameter at a time",
        )
        return info.state
    _load_as_saved(engine, info, manifest.engine, now, world, load_optim)
    return info.state


def _load_as_saved(
    engine: Engine,
    info: CheckpointInfo,
    saved: EngineFacts,
    now: EngineFacts,
    world: World,
    load_optim: bool,
) -> None:
    """Load files that an engine like this one wrote, by DeepSpeed's loader as far as that can."""
    by_name = (
        holds_parts(engine)
        or saved.zero_stage == 3
        or saved.pipe_parallel_size != now.pipe_parallel_size
    )
    if not by_name:
        _load_together(engine, info, world, load_optim)
    elif load_optim:
        # DeepSpeed would compare nothing: in its files of weights there are only places for parts.
        together(world, lambda: check_weights_fit(engine.module, info, engine.mp_world_size))
        _load_together(engine, info, world, load_optim)
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


def _load_together(engine: Engine, info: CheckpointInfo, world: World, load_optim: bool) -> None:
    """DeepSpeed's loader on all ranks, and one outcome.

    Under ZeRO 3 it ends with a collective, which gathers the small parameters that every rank keeps
    whole. A rank with a broken file would not get there, and leave the others waiting in it: so it comes
    after all have agreed.
    """
    optimizer, last = engine.optimizer, "checkpoint_event_epilogue"
    if not hasattr(optimizer, last):
        together(world, lambda: _load(engine, info, load_optim))
        return
    setattr(optimizer, last, lambda: None)
    try:
        together(world, lambda: _load(engine, info, load_optim))
    finally:
        delattr(optimizer, last)  # the class's own shows through again
    optimizer.checkpoint_event_epilogue()


def _load(engine: Engine, info: CheckpointInfo, load_optim: bool) -> None:
    try:
        with _settings_kept(engine):
            path, _ = engine.load_checkpoint(
                str(info.path.parent), tag=info.path.name, load_optimizer_states=load_optim
            )
    except BROKEN_FILE as error:
        if "loading state_dict" in str(error):
            # The files are in order, but of another model: which weights differ says more.
            ranks = engine_facts(engine, 1).model_parallel_size
            check_weights_fit(model_under(engine), info, ranks)
        stages = "; for a pipe_partition_method that it was not saved with, reshape_on_load: true"
        raise CheckpointError(
            f"{info.path} cannot be loaded\n  found: {describe(error)}\n"
            "  to do: restore it, or choose another step with --iteration N"
            + (stages if engine.pipeline_parallelism else "")
        ) from error
    if path is None or engine.global_steps != info.step:
        raise CheckpointError(
            f"{info.path}: DeepSpeed found nothing to load there"
            if path is None
            else f"{info.path} holds step {engine.global_steps}; expected {info.step}"
        )
    if load_optim:
        # torch takes whatever states there are, and would start anew those that it does not find.
        states = base_optimizer(engine).state.values()
        kinds = {
            name
            for state in states
            for name, value in state.items()
            if name != "step" and isinstance(value, Tensor)
        }
        require_own_states(info, kinds, engine, engine.skipped_steps)


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
        continue_scaling(own["loss_scaler"], vars(optimizer.loss_scaler))
        optimizer.loss_scaler = own["loss_scaler"]
        optimizer.dynamic_loss_scale = own["loss_scaler"].dynamic
