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


def vocab_parallel_cross_entropy(logits: Tensor, labels: Tensor, groups: ParallelGroups) -> Tensor:
    """``-log softmax(logits)[label]`` of each token, in fp32.

    Args:
        logits: [..., v / size], this rank's part of the vocabulary, in any floating type.
        labels: [...] int64, numbers in the whole vocabulary.
        groups: the layout of ranks.

    Returns:
        [...] fp32, nats, the same on every rank of the group.
    """
    if groups.get_model_parallel_world_size() == 1:
        flat = logits.reshape(-1, logits.size(-1)).float()
        return F.cross_entropy(flat, labels.reshape(-1), reduction="none").view(labels.shape)
    out: Tensor = _VocabParallelCrossEntropy.apply(logits, labels, groups)  # type: ignore[no-untyped-call]
    return out


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, groups: ParallelGroups) -> Tensor:
        group = groups.get_model_parallel_group()
        rows = logits.size(-1)
        local = labels - rows * groups.get_model_parallel_rank()
        elsewhere = (local < 0) | (local >= rows)
        local = local.masked_fill(elsewhere, 0).unsqueeze(-1)

        largest = logits.amax(-1, keepdim=True).float()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits.float() - largest
        wanted = shifted.gather(-1, local).squeeze(-1).masked_fill(elsewhere, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(-1), wanted))
        dist.all_reduce(sums, group=group)

        softmax = exponentials.div_(sums[0].unsqueeze(-1))
        ctx.save_for_backward(softmax, local, elsewhere)
        ctx.kind = logits.dtype
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, local, elsewhere = ctx.saved_tensors
        minus_one = elsewhere.float().sub(1.0).unsqueeze(-1)
        out = softmax.scatter_add(-1, local, minus_one)
        return out.mul_(grad.unsqueeze(-1)).to(ctx.kind), None, None
