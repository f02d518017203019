"""The loss as a sum over valid tokens."""

from __future__ import annotations

import math

import pytest
import torch

from megatron.losses import loss_sum
from megatron.mpu import vocab_parallel_cross_entropy
from tests.support.models import SINGLE


def test_literal_values() -> None:
    # Row 1: p = [1/2, 1/4, 1/4]; row 2: p = [1/10, 1/10, 8/10].
    logits = torch.tensor([[[2.0, 1.0, 1.0], [1.0, 1.0, 8.0]]]).log().requires_grad_()
    labels = torch.tensor([[1, 2]])
    loss = loss_sum(logits, labels, torch.tensor([[True, True]]), SINGLE)
    assert loss.item() == pytest.approx(math.log(4) + math.log(1.25), rel=1e-6)
    loss.backward()
    # Softmax minus one at the label.
    expected = torch.tensor([[[0.5, -0.75, 0.25], [0.1, 0.1, -0.2]]])
    torch.testing.assert_close(logits.grad, expected)


def test_z_loss_is_the_square_of_log_z() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 5, 7, generator=generator).mul(2).requires_grad_()
    other = logits.detach().clone().requires_grad_()
    labels = torch.randint(0, 7, (2, 5), generator=generator)
    mask = torch.rand(2, 5, generator=generator) < 0.6
    loss = loss_sum(logits, labels, mask, SINGLE, z_loss=0.3)
    log_z = other.exp().sum(-1).log()
    wanted = other.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    expected = ((log_z - wanted + 0.3 * log_z.square()) * mask).sum()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(logits.grad, other.grad)


def test_masked_positions_add_exactly_nothing() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    # What stands in a masked position must not matter, be it enormous.
    logits[1, 3] *= 1e6
    logits.requires_grad_()
    labels = torch.arange(10).view(2, 5) % 7
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 2] = mask[1, 3] = False
    loss = loss_sum(logits, labels, mask, SINGLE)
    loss.backward()
    by_hand = -logits.detach().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert loss.item() == pytest.approx(by_hand[mask].sum().item(), rel=1e-6)
    assert logits.grad is not None
    assert not logits.grad[~mask].any()
    assert logits.grad[mask].any(-1).all()


def test_nothing_valid_is_zero() -> None:
    logits = torch.randn(1, 2, 3, requires_grad=True)
    loss = loss_sum(logits, torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2).bool(), SINGLE)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_half_precision_logits_are_summed_in_fp32() -> None:
    logits = torch.zeros(1, 4096, 3, dtype=torch.bfloat16)
    labels = torch.zeros(1, 4096, dtype=torch.long)
    loss = loss_sum(logits, labels, torch.ones(1, 4096, dtype=torch.bool), SINGLE)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(4096 * math.log(3), rel=1e-5)


def test_one_rank_vocab_parallel_cross_entropy_is_per_token() -> None:
    logits = torch.tensor([[[2.0, 1.0, 1.0], [1.0, 1.0, 8.0]]]).log()
    got = vocab_parallel_cross_entropy(logits, torch.tensor([[1, 2]]), SINGLE)
    torch.testing.assert_close(got, torch.tensor([[math.log(4), math.log(1.25)]]))
