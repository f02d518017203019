"""One optimizer step through DeepSpeed's pipeline engine, with the numbers of a step without one.

The engine runs the schedule (one forward, one backward), moves activations and gradients between stages,
and sums gradients. What :func:`megatron.training.step.train_step` does around that is done here: labels
bring with them the factor that makes the sum of the micro-losses a mean over the valid tokens of the whole
global batch, and between the gradients and the update all ranks agree on the loss and on stopping.

Each stage seeds its dropout for every micro-batch by a function of (seed, step, micro-batch, data rank,
stage). The first stage reads tokens, the last labels; what those between are given counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from megatron.data.step_batch import StepBatch
from megatron.losses.pipeline import PipelineLoss
from megatron.model.pipeline import GPT2ModelPipe
from megatron.optimizers import set_learning_rate
from megatron.runtime.seeds import seed_dropout
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.training.forward import places_of
from megatron.training.step import (
    StepResult,
    StepSettings,
    finish_step,
    global_count,
    train_step,
)

_UPDATE = deepspeed.runtime.pipe.schedule.OptimizerStep


class Step(Protocol):
    """What does a step: see :func:`megatron.training.step.train_step`."""

    def __call__(
        self,
        engine: Any,
        batch: StepBatch,
        settings: StepSettings,
        *,
        step: int,
        learning_rate: float,
        stop_asked: Callable[[], bool] = ...,
    ) -> StepResult: ...


def step_of(engine: Any) -> Step:
    """How ``engine`` does a step."""
    return pipeline_step if isinstance(engine.module, GPT2ModelPipe) else train_step


def pipeline_step(
    engine: Any,
    batch: StepBatch,
    settings: StepSettings,
    *,
    step: int,
    learning_rate: float,
    stop_asked: Callable[[], bool] = bool,
) -> StepResult:
    """Do the 0-based ``step`` on ``batch``, as :func:`megatron.training.step.train_step` does.

    Raises:
        TrainingError: the loss or the gradient norm is not finite; the weights are then as before.
    """
    groups, module = settings.groups, engine.module
    set_learning_rate(engine.optimizer.param_groups, learning_rate)
    batch = batch.to(settings.device)
    is_last = module.stage.is_last
    valid = torch.zeros((), dtype=torch.float64, device=settings.device)
    if is_last:
        valid = global_count(batch.loss_mask, groups)

    def seed(micro: int) -> None:
        seed_dropout(
            settings.seed,
            step=step,
            micro_batch=micro,
            data_rank=groups.place.data,
            pipe_rank=groups.get_pipe_parallel_rank(),
        )

    def finish(engine: Any, update: Callable[[], object]) -> StepResult:
        loss: PipelineLoss = module.loss_fn
        local_sum = loss.take_total(settings.device)
        return finish_step(
            engine, settings, local_sum, valid, step=step, stop=stop_asked(), update=update
        )

    module.begin_step(seed if settings.has_dropout else None)
    results = _update_with(engine, finish)
    scale = len(batch.tokens) * groups.get_gradient_world_size() / valid.clamp(min=1)
    engine.train_batch(_micro_batches(batch, scale.float()))
    module.begin_step(None)
    return results[0]


def _update_with(
    engine: Any, finish: Callable[[Any, Callable[[], object]], StepResult]
) -> list[StepResult]:
    """Let ``engine`` call ``finish`` with its own update, in the place of that; what came of it."""
    results: list[StepResult] = []
    instructions = type(engine)._INSTRUCTION_MAP
    plain_update = instructions[_UPDATE]

    def update(engine: Any) -> None:
        results.append(finish(engine, lambda: plain_update(engine)))

    # The engine looks its instructions up in this map, and binds what it finds to itself.
    engine._INSTRUCTION_MAP = {**instructions, _UPDATE: update}
    return results


def _micro_batches(
    batch: StepBatch, scale: Tensor
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """What the engine's first stage reads of each micro-batch, and what its last compares with."""
    for micro, mask in enumerate(batch.loss_mask):
        places = places_of(batch, micro)
        inputs = (batch.inputs[micro],) if places is None else (batch.inputs[micro], places)
        yield inputs, (batch.targets[micro], mask, scale)
