"""Cross entropy over a vocabulary that is split over the ranks of a model-parallel group.

No rank ever holds the logits of the whole vocabulary: the ranks exchange, for each token, the largest
logit, the sum of exponentials and the logit of the label.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from megatron.mpu.groups import ParallelGroups


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, groups: ParallelGroups, *, z_loss: float = 0.0
) -> Tensor:
    """``-log softmax(logits)[label]`` of each token, plus ``z_loss * log(Z)^2``, in fp32.

    Z is the sum of the exponentials: a small ``z_loss`` (1e-4 in PaLM, arXiv:2204.02311, section 5)
    keeps logits from drifting away from 0, on which the softmax itself puts no price.

    Args:
        logits: [..., v / size], this rank's part of the vocabulary, in any floating type.
        labels: [...] int64, numbers in the whole vocabulary.
        groups: the layout of ranks.
        z_loss: the price of log(Z)^2.

    Returns:
        [...] fp32, nats, the same on every rank of the group.
    """
    if groups.get_model_parallel_world_size() == 1:
        flat = logits.reshape(-1, logits.size(-1)).float()
        losses = F.cross_entropy(flat, labels.reshape(-1), reduction="none")
        if z_loss:
            losses = losses + z_loss * flat.logsumexp(-1).square()
        return losses.view(labels.shape)
    out: Tensor = _VocabParallelCrossEntropy.apply(logits, labels, groups, z_loss)  # type: ignore[no-untyped-call]
    return out


def vocab_parallel_log_probs(logits: Tensor, labels: Tensor, groups: ParallelGroups) -> Tensor:
    """The log-probability that the model gives to each label: [..., v / size], [...] -> [...] fp32."""
    return -vocab_parallel_cross_entropy(logits, labels, groups)


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, groups: ParallelGroups, z_loss: float
    ) -> Tensor:
        group = groups.get_model_parallel_group()
        rows = logits.size(-1)
        local = labels - rows * groups.get_model_parallel_rank()
        elsewhere = (local < 0) | (local >= rows)
        local = local.masked_fill(elsewhere, 0).unsqueeze(-1)

        largest = logits.amax(-1, keepdim=True).float()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        # One copy in fp32, which becomes the softmax: with half logits, `logits.float()` would be another.
        shifted = logits - largest
        wanted = shifted.gather(-1, local).squeeze(-1).masked_fill(elsewhere, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(-1), wanted))
        dist.all_reduce(sums, group=group)

        softmax = exponentials.div_(sums[0].unsqueeze(-1))
        log_sum = sums[0].log()
        losses = log_sum - sums[1]
        log_z = log_sum + largest.squeeze(-1)
        if z_loss:
            losses += z_loss * log_z.square()
        ctx.save_for_backward(softmax, local, elsewhere, log_z)
        ctx.kind, ctx.z_loss = logits.dtype, z_loss
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, local, elsewhere, log_z = ctx.saved_tensors
        minus_one = elsewhere.float().sub(1.0).unsqueeze(-1)
        # d log(Z) / d logit is the softmax too.
        factor = (1.0 + 2.0 * ctx.z_loss * log_z).unsqueeze(-1)
        out = softmax * factor if ctx.z_loss else softmax.clone()
        out.scatter_add_(-1, local, minus_one)
        return out.mul_(grad.unsqueeze(-1)).to(ctx.kind), None, None, None
