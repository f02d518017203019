"""Protects products and attention: through fp32 kernels, under masks, with fewer key/value heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import megatron.mpu.matmul as matmul


@pytest.fixture
def no_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "has_native_half_matmul", lambda: False)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("no_native")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_equals_fp32_rounded_once(dtype: torch.dtype, with_bias: bool) -> None:
    x, weight, bias = numbers(3, 4, 8), numbers(6, 8, seed=1), numbers(6, seed=2)
    half = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
    wide = [t.detach().float().requires_grad_() for t in half]
    if not with_bias:
        half, wide = half[:2], wide[:2]
    got, expected = matmul.linear(*half), F.linear(*wide)
    assert got.dtype == dtype
    assert torch.equal(got, expected.to(dtype))
    grad = numbers(3, 4, 6, seed=3).to(dtype)
    got.backward(grad)
    expected.backward(grad.float())
    for mine, reference in zip(half, wide, strict=True):
        assert mine.grad is not None
        assert reference.grad is not None
        assert mine.grad.dtype == dtype
        assert torch.equal(mine.grad, reference.grad.to(dtype))


@pytest.mark.usefixtures("no_native")
def test_frozen_weight_gets_no_gradient() -> None:
    x = numbers(2, 8).bfloat16().requires_grad_()
    weight = numbers(6, 8).bfloat16()
    matmul.linear(x, weight).sum().backward()
    assert x.grad is not None
    assert weight.grad is None


@pytest.mark.usefixtures("no_native")
def test_what_is_kept_for_backward_stays_half() -> None:
    kept: list[torch.dtype] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    x, weight = numbers(2, 8).bfloat16().requires_grad_(), numbers(6, 8).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        matmul.linear(x, weight)
    assert kept == [torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_by_hand(
    monkeypatch: pytest.MonkeyPatch, native: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(matmul, "has_native_half_matmul", lambda: native)
    query, key, value = (
        numbers(2, n, 5, 4, seed=n).to(dtype) for n, _ in ((4, "q"), (2, "k"), (2, "v"))
    )
    got = matmul.attend(query, key, value, causal=True)
    assert got.dtype == dtype
    for head in range(4):
        scores = query[:, head].float() @ key[:, head // 2].float().transpose(1, 2) / 2.0
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        expected = scores.softmax(-1) @ value[:, head // 2].float()
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got[:, head].float(), expected, rtol=tolerance, atol=tolerance)


def test_a_mask_says_where_to_look() -> None:
    query, key = numbers(1, 1, 2, 4), numbers(1, 1, 3, 4, seed=1)
    value = torch.eye(3).expand(1, 1, 3, 3)
    mask = torch.tensor([[[[True, False, False], [False, True, True]]]])
    weights = matmul.attend(query, key, value, mask=mask)[0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    assert weights[0].tolist() == [1.0, 0.0, 0.0]
    assert weights[1, 0] == 0.0


def test_repeated_heads_equal_grouped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What accelerators without a fused grouped kernel compute equals what the CPU's kernel does."""
    query = numbers(2, 6, 5, 8)
    key, value = numbers(2, 2, 2, 5, 8, seed=1)
    grouped = matmul.attend(query, key, value, causal=True)
    monkeypatch.setattr(matmul, "_groups_are_fused", lambda query, mask: False)
    repeated = matmul.attend(query, key, value, causal=True)
    torch.testing.assert_close(repeated, grouped, rtol=1e-6, atol=1e-6)
