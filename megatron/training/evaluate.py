"""The mean loss of the model on a run of batches, without touching a gradient or a generator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from megatron.data.step_batch import StepBatch
from megatron.losses import loss_sum
from megatron.model import GPT2Model
from megatron.mpu import ParallelGroups
from megatron.training.forward import evaluated_logits


@dataclass(frozen=True)
class LossTotal:
    """Attributes: ``loss_sum`` in nats over ``tokens`` valid tokens, on all ranks."""

    loss_sum: float
    tokens: int

    @property
    def mean(self) -> float:
        """Nats per token; not a number where no token counts, which is no perfect score."""
        return self.loss_sum / self.tokens if self.tokens else math.nan


@torch.no_grad()
def total_loss(
    model: GPT2Model, batches: Iterable[StepBatch], groups: ParallelGroups, device: torch.device
) -> LossTotal:
    """Sum the loss over ``batches`` (this rank's part of them) and over all ranks.

    In a pipeline its stages have batches of the same shapes; only the first and the last read them.

    The model is in evaluation mode meanwhile and is left in the mode in which it came.
    """
    was_training = model.training
    model.eval()
    # Sums in fp64: thousands of batches of thousands of tokens each.
    total = torch.zeros(2, dtype=torch.float64, device=device)
    try:
        for batch in batches:
            there = batch.to(device)
            for micro, mask in enumerate(there.loss_mask):
                logits = evaluated_logits(model, there, micro)
                if logits is None:
                    continue  # a later stage of the pipeline has them
                total[0] += loss_sum(logits, there.targets[micro], mask, groups)
                total[1] += mask.sum()
    finally:
        model.train(was_training)
    if groups.get_gradient_world_size() > 1:
        dist.all_reduce(total, group=groups.get_gradient_group())
    if groups.get_pipe_parallel_world_size() > 1:
        dist.all_reduce(total, group=groups.get_pipe_parallel_group())
    loss, tokens_seen = total.tolist()
    return LossTotal(loss, int(tokens_seen))
