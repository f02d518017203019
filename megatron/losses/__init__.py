"""Losses: tensors in, numbers out."""

from megatron.losses.language_model import loss_sum

__all__ = ["loss_sum"]
