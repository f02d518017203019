"""Protects the loss where the vocabulary is whole; where it is split: test_parallel_model.py."""

from __future__ import annotations

import math

import torch

from megatron.mpu import (
    ParallelGroups,
    vocab_parallel_cross_entropy,
    vocab_parallel_log_probs,
)
from megatron.runtime.world import World

# Unnormalised: Z is 1 + 3 in the first row, 2 + 6 in the second.
LOGITS = torch.tensor([[[1.0, 3.0], [2.0, 6.0]]]).log()
LABELS = torch.tensor([[1, 0]])


def test_losses_by_hand() -> None:
    groups = ParallelGroups(World())
    losses = vocab_parallel_cross_entropy(LOGITS, LABELS, groups)
    torch.testing.assert_close(losses, -torch.tensor([[0.75, 0.25]]).log())
    assert torch.equal(vocab_parallel_log_probs(LOGITS, LABELS, groups), -losses)
    dearer = vocab_parallel_cross_entropy(LOGITS, LABELS, groups, z_loss=0.1)
    price = torch.tensor([[0.1 * math.log(4) ** 2, 0.1 * math.log(8) ** 2]])
    torch.testing.assert_close(dearer, losses + price)


def test_half_precision_is_summed_in_fp32() -> None:
    groups = ParallelGroups(World())
    half = LOGITS.bfloat16()
    losses = vocab_parallel_cross_entropy(half, LABELS, groups)
    assert losses.dtype == torch.float32
    assert torch.equal(losses, vocab_parallel_cross_entropy(half.float(), LABELS, groups))
