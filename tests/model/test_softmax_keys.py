"""Protects what is said of the keys about attention's softmax and its kernels: they change nothing here.

GPT-NeoX computes a softmax in half precision unless told otherwise, and guards fp16 scores against overflow
by dividing them by the layer's number first and multiplying the softmax's input by it. Here a softmax is
always one of fp32 numbers, and scores never are fp16 numbers before they are scaled.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import megatron.mpu.matmul
from megatron.model.positional_embeddings import RotaryTable
from megatron.mpu.matmul import attend
from megatron.neox_arguments import NeoXArgs
from tests.support.models import tiny_args
from tests.support.small_config import small

HALF = [torch.bfloat16, torch.float16]


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention in fp64."""
    query, key, value = query.double(), key.double(), value.double()
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ value


def tensors(size: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    found = [torch.randn(2, 4, 32, 16, generator=generator) for _ in range(3)]
    return [found[0] * size, found[1] * size, found[2]]


@pytest.mark.parametrize("native", [True, False], ids=["native", "through fp32"])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_softmax_is_computed_in_fp32(
    dtype: torch.dtype, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further from exact than rounding the result once; a softmax of halves is much further."""
    monkeypatch.setattr(megatron.mpu.matmul, "has_native_half_matmul", lambda: native)
    query, key, value = (x.to(dtype) for x in tensors(2.0))
    expected = plain(query, key, value)
    off = (attend(query, key, value, causal=True).double() - expected).abs().mean()
    scores = (query @ key.transpose(-1, -2)).double() / 4
    later = torch.ones(32, 32, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later, -torch.inf).to(dtype)
    in_halves = (scores.softmax(-1) @ value).double()
    assert off < 0.5 * (in_halves - expected).abs().mean()
    assert off < 4 * (expected.to(dtype).double() - expected).abs().mean()


@pytest.mark.parametrize("native", [True, False], ids=["native", "through fp32"])
def test_large_products_do_not_overflow(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of queries and keys beyond 65,504, the largest number of fp16."""
    monkeypatch.setattr(megatron.mpu.matmul, "has_native_half_matmul", lambda: native)
    query, key, value = (x.half() for x in tensors(150.0))
    assert (query @ key.transpose(-1, -2)).isinf().any()
    got = attend(query, key, value, causal=True)
    torch.testing.assert_close(got.double(), plain(query, key, value), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    "key",
    [
        "attention_softmax_in_fp32",
        "apply_query_key_layer_scaling",
        "scaled_upper_triang_masked_softmax_fusion",
        "scaled_masked_softmax_fusion",
        "rope_fusion",
        "bias_dropout_fusion",
    ],
)
def test_keys_about_kernels_change_nothing(key: str) -> None:
    """All that a model is built from is the same."""
    given, default = (NeoXArgs.from_dict(small(**changes)) for changes in ({key: True}, {}))
    assert getattr(given.kernels, key)
    assert dataclasses.replace(given, kernels=default.kernels, notes=default.notes) == default


def test_yarns_factor_is_given() -> None:
    """It multiplies queries and keys through the angles: scores by its square."""
    yarn = {"rotary_scaling": "yarn", "rotary_original_positions": 8, "rotary_scaling_factor": 4.0}
    default, given = (
        RotaryTable(8, 100.0, 16, tiny_args(**yarn, rotary_attention_factor=factor))
        for factor in (None, 1.25)
    )
    cpu = torch.device("cpu")
    ratio = 1.25 / (0.1 * math.log(4.0) + 1.0)
    for one, other in zip(given.first(16, cpu), default.first(16, cpu), strict=True):
        torch.testing.assert_close(one, other * ratio)
