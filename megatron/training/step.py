"""One optimizer step: micro-batches forward and backward, one agreement of all ranks, one update.

The loss of a step is the sum over all its valid tokens, divided by how many there are in the whole
global batch. A mean of per-rank means would weigh a rank with few valid tokens like a full one.
DeepSpeed divides gradients by the number of micro-batches and of the ranks that it sums them over
(data × context); each micro-loss is multiplied by both beforehand, so that what remains is exactly
1 / valid tokens.

In fp16 DeepSpeed also multiplies the loss by a factor that keeps small gradients above the smallest
number of the type, and takes it out again. Where a gradient overflows on any rank, all ranks skip the
update, and the factor falls.

Shapes: a = micro-batches of a step on one rank, b = micro-batch size, s = sequence length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from megatron.data.step_batch import StepBatch
from megatron.errors import TrainingError
from megatron.losses import loss_sum
from megatron.mpu import ParallelGroups
from megatron.optimizers import clip_gradients, global_grad_norm, set_learning_rate
from megatron.runtime.seeds import seed_dropout
from megatron.training.forward import logits_of

# In fp16: after so many skipped steps in a row a run gives up. A loss scale of 2^32 has come down to 1
# by then.
MOST_SKIPS = 50


@dataclass(frozen=True)
class StepSettings:
    """What a step needs to know beside the model and the data.

    Attributes:
        device: where this rank computes.
        groups: the parallel layout.
        seed: the run's seed, for dropout.
        has_dropout: whether generators need seeding at all.
        zero_stage: stage that the engine runs.
        z_loss: weight of log(Z)^2 in the loss.
    """

    device: torch.device
    groups: ParallelGroups
    seed: int
    has_dropout: bool
    zero_stage: int
    z_loss: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """Attributes:
    loss: mean loss over the valid tokens of the global batch, in nats per token.
    grad_norm: L2 norm of the gradient of that loss, before clipping; infinite in a skipped step.
    stop: whether any rank was asked to stop.
    skipped: whether gradients overflowed in fp16, and nothing was updated. The loss may be no number then.
    loss_scale: the factor of the next step's loss in fp16, else None.
    """

    loss: float
    grad_norm: float
    stop: bool
    skipped: bool = False
    loss_scale: float | None = None


def train_step(
    engine: Any,
    batch: StepBatch,
    settings: StepSettings,
    *,
    step: int,
    learning_rate: float,
    stop_asked: Callable[[], bool] = bool,
) -> StepResult:
    """Do the 0-based ``step`` on ``batch`` (tokens ``[a, b, s+1]``, loss mask ``[a, b, s]``).

    Whether this rank was asked to stop, ``stop_asked`` tells at the end of the step, so that a signal
    in the middle of a long one does not cost another.

    Raises:
        TrainingError: the loss or the gradient norm is not finite, and that is no overflow of fp16
            that a smaller loss scale may help; the weights are as before, unless it says so.
    """
    groups = settings.groups
    set_learning_rate(engine.optimizer.param_groups, learning_rate)
    batch = batch.to(settings.device)
    mask, micro_batches = batch.loss_mask, len(batch.tokens)
    # Both stay on the device, so that the forward pass need not wait for them.
    valid = global_count(mask, groups)
    scale = (micro_batches * groups.get_gradient_world_size() / valid).float()
    local_sum = torch.zeros((), dtype=torch.float64, device=settings.device)
    for micro in range(micro_batches):
        if settings.has_dropout:
            seed_dropout(
                settings.seed,
                step=step,
                micro_batch=micro,
                data_rank=groups.place.data,
                context_rank=groups.place.context,
            )
        logits = logits_of(engine, batch, micro)
        loss = loss_sum(logits, batch.targets[micro], mask[micro], groups, z_loss=settings.z_loss)
        local_sum += loss.detach()
        engine.backward(loss * scale)
        if micro + 1 < micro_batches:
            engine.step()
    return finish_step(
        engine, settings, local_sum, valid, step=step, stop=stop_asked(), update=engine.step
    )


def finish_step(
    engine: Any,
    settings: StepSettings,
    local_sum: torch.Tensor,
    valid: torch.Tensor,
    *,
    step: int,
    stop: bool,
    update: Callable[[], object],
) -> StepResult:
    """Behind the last backward pass: all ranks agree, the gradients are clipped, the weights change.

    Args:
        engine: DeepSpeed's, with the gradients summed over the data-parallel ranks.
        settings: as in :func:`train_step`.
        local_sum: fp64, losses that this rank has added up, in nats; 0 before a pipeline's last stage.
        valid: fp64, valid tokens of the global batch; 0 before a pipeline's last stage.
        step: number of the step, from 0.
        stop: whether this rank was asked to stop.
        update: the engine's part.

    Raises:
        TrainingError: as in :func:`train_step`.
    """
    groups = settings.groups
    loss_value, stop = _agree(local_sum, valid, stop, groups)
    if engine.fp16_enabled():
        return _update_in_fp16(engine, loss_value, stop, step, update)
    _require_finite("the loss", loss_value, step)
    # Stage 0 neither reports the norm nor stops at a bad one, so it is taken before the update, and
    # clipped here too.
    # From stage 1 on DeepSpeed takes it inside step() and skips the update when it is not finite.
    grad_norm = 0.0
    if settings.zero_stage == 0:
        grad_norm = global_grad_norm(engine.module.parameters(), groups)
        _require_finite("the gradient norm", grad_norm, step)
        clip_gradients(engine.module.parameters(), grad_norm, engine.gradient_clipping())
    update()
    if settings.zero_stage > 0:
        grad_norm = float(engine.get_global_grad_norm())
        _require_finite("the gradient norm", grad_norm, step)
    return StepResult(loss_value, grad_norm, stop)


def _update_in_fp16(
    engine: Any, loss: float, stop: bool, step: int, update: Callable[[], object]
) -> StepResult:
    """The update, or none where DeepSpeed found an overflow on any rank. ZeRO stages from 1 on."""
    try:
        update()
    except Exception as error:
        # DeepSpeed has no type of its own for it.
        if "loss scale already at minimum" not in str(error):
            raise
        raise TrainingError(
            f"step {step + 1}: fp16 gradients overflow at the smallest loss scale, "
            f"{engine.optimizer.loss_scale:g} (fp16.min_loss_scale)\n{_FP16_REMEDY}",
            everywhere=True,
        ) from error
    grad_norm = float(engine.get_global_grad_norm())
    skipped = bool(engine.optimizer.overflow)
    if not skipped:
        updated = "the weights were updated in this step"
        _require_finite("the loss", loss, step, weights=updated)
        _require_finite("the gradient norm", grad_norm, step, weights=updated)
    return StepResult(loss, grad_norm, stop, skipped, float(engine.optimizer.loss_scale))


def global_count(mask: torch.Tensor, groups: ParallelGroups) -> torch.Tensor:
    """Valid tokens of the global batch, an fp64 scalar; at least 1.

    A step without one valid token has the loss and the gradient 0, not 0 / 0.
    """
    count = mask.sum(dtype=torch.float64)
    if groups.get_gradient_world_size() > 1:
        dist.all_reduce(count, group=groups.get_gradient_group())
    return count.clamp(min=1)


def _agree(
    local_sum: torch.Tensor, valid: torch.Tensor, stop_asked: bool, groups: ParallelGroups
) -> tuple[float, bool]:
    """The mean loss of all tokens, and whether any rank was asked to stop.

    All travels in one collective and is read once, so that asking costs nothing. A signal reaches the
    ranks at different times: whoever shares a model must hear of it too, or would train on alone.
    """
    sums = torch.stack([local_sum, torch.full_like(local_sum, float(stop_asked))])
    if groups.get_gradient_world_size() > 1:
        dist.all_reduce(sums, group=groups.get_gradient_group())
    if groups.get_model_parallel_world_size() > 1:
        dist.all_reduce(sums[1:], group=groups.get_model_parallel_group())
    sums = torch.cat([sums, valid.unsqueeze(0)])
    if groups.get_pipe_parallel_world_size() > 1:
        dist.all_reduce(sums, group=groups.get_pipe_parallel_group())
    total, stops, count = sums.tolist()
    return total / count, stops > 0


_FP16_REMEDY = (
    "  often: a learning rate that is too high, too short a warm-up, or values beyond fp16's largest, "
    "65,504\n"
    "  to do: use precision: bfloat16, or resume from an earlier checkpoint (--iteration N) with a lower "
    "lr, a longer warmup or a lower gradient_clipping"
)


def give_up_after(skipped_in_a_row: int, step: int, loss_scale: float) -> None:
    """Stop a run in fp16 that no longer learns: the loss scale does not fall, or falls for ever.

    Raises:
        TrainingError: the last :data:`MOST_SKIPS` steps were all skipped.
    """
    if skipped_in_a_row < MOST_SKIPS:
        return
    raise TrainingError(
        f"step {step}: the last {MOST_SKIPS} steps overflowed in fp16 and were skipped; the loss scale is "
        f"{loss_scale:g}\n{_FP16_REMEDY}\n"
        "  with a fixed fp16.loss_scale: lower it, or set it to 0, which lets it follow overflows",
        everywhere=True,
    )


def _require_finite(
    what: str, value: float, step: int, weights: str = "the weights were not updated in this step"
) -> None:
    if math.isfinite(value):
        return
    raise TrainingError(
        f"step {step + 1}: {what} is {value}; {weights}\n"
        "  often: a learning rate that is too high, too short a warm-up, or broken data\n"
        "  to do: resume from an earlier checkpoint (--iteration N) with a lower lr, a longer "
        "warmup or a lower gradient_clipping",
        everywhere=True,
    )
