"""The language-model loss, as a sum: the training loop divides by the step's count of valid tokens.

Dividing once, by the count over all ranks and micro-batches, weighs every token alike; a mean of means
would weigh tokens of a sparsely labelled micro-batch more.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from megatron.mpu.cross_entropy import vocab_parallel_cross_entropy
from megatron.mpu.groups import ParallelGroups

_IGNORE = -100


def loss_sum(
    logits: Tensor,
    labels: Tensor,
    loss_mask: Tensor,
    groups: ParallelGroups,
    *,
    z_loss: float = 0.0,
) -> Tensor:
    """Sum of the cross entropies of the tokens that count, in nats.

    Args:
        logits: [b, s, v], or this rank's part of the vocabulary [b, s, v / size].
        labels: [b, s] int64, the ids that should have been predicted.
        loss_mask: [b, s] bool, true where a label counts. A masked position adds exactly nothing to
            the sum and to the gradients.
        groups: the layout of ranks.
        z_loss: the price of log(Z)^2: see :func:`vocab_parallel_cross_entropy`.

    Returns:
        An fp32 scalar, the same on every model-parallel rank.
    """
    if groups.get_model_parallel_world_size() > 1 or z_loss:
        losses = vocab_parallel_cross_entropy(logits, labels, groups, z_loss=z_loss)
        return losses.masked_fill(~loss_mask, 0.0).sum()
    wanted = labels.masked_fill(~loss_mask, _IGNORE)
    flat = logits.reshape(-1, logits.size(-1)).float()
    return F.cross_entropy(flat, wanted.reshape(-1), ignore_index=_IGNORE, reduction="sum")
