"""The language-model loss as the last stage of a pipeline computes it, a micro-batch at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from megatron.losses.language_model import loss_sum
from megatron.mpu.groups import ParallelGroups


class PipelineLoss:
    """What DeepSpeed's engine calls with the logits and the labels of a micro-batch.

    Args:
        groups: the layout of ranks.
        z_loss: the price of log(Z)^2: see :func:`megatron.losses.loss_sum`.
    """

    def __init__(self, groups: ParallelGroups, *, z_loss: float = 0.0) -> None:
        self._groups = groups
        self._z_loss = z_loss
        self._total: Tensor | None = None

    def __call__(self, logits: Tensor, labels: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The loss to differentiate: a scalar.

        Args:
            logits: [b, s, v], or this rank's part of the vocabulary.
            labels: [b, s] ids, [b, s] bool which of them count, and the scalar that the sum of their
                losses is multiplied by.
        """
        ids, mask, scale = labels
        loss = loss_sum(logits, ids, mask, self._groups, z_loss=self._z_loss)
        here = loss.detach().double()
        self._total = here if self._total is None else self._total + here
        return loss * scale

    def take_total(self, device: torch.device) -> Tensor:
        """The sum of the losses since the last call, an fp64 scalar, in nats; 0 before the last stage."""
        total, self._total = self._total, None
        return torch.zeros((), dtype=torch.float64, device=device) if total is None else total
