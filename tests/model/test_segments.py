"""No token sees another segment: against a dense mask, other texts, and each segment by itself."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from megatron.losses import loss_sum
from megatron.model import Segments, positions_within, segments
from megatron.model.segments import attend_within
from megatron.mpu.matmul import attend
from tests.support.models import SINGLE, shake, tiny_model

CPU = torch.device("cpu")
# Three rows of 16: a length that occurs in both, one token alone, a whole row.
STARTS = torch.tensor([[0, 5, 6, 11], [0, 16, 16, 16], [0, 8, 13, 16]], dtype=torch.int32)
LENGTHS = [[5, 1, 5, 5], [16], [8, 5, 3]]
ALL = Segments.from_starts(STARTS, 16, CPU)
TOKENS = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(1))


def dense_mask() -> Tensor:
    """[b, 1, s, s], true where a token may look: earlier ones of its own segment, and itself."""
    mask = torch.zeros(3, 1, 16, 16, dtype=torch.bool)
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for length in lengths:
            for token in range(start, start + length):
                mask[row, 0, token, start : token + 1] = True
            start += length
    return mask


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def test_segments_are_counted_row_by_row() -> None:
    assert ALL.lengths == (5, 1, 5, 5, 16, 8, 5, 3)
    assert ALL.cumulative.tolist() == [0, 5, 6, 11, 16, 32, 40, 45, 48]
    assert ALL.cumulative.dtype == torch.int32
    assert ALL.by_length.groups == [(1, 1), (1, 3), (4, 5), (1, 8), (1, 16)]
    order = [5, 45, 46, 47, *range(5), *range(6, 16), *range(40, 45), *range(32, 40)]
    assert ALL.by_length.order.tolist() == [*order, *range(16, 32)]


def test_positions_restart_where_a_segment_does() -> None:
    found = positions_within(STARTS, 16)
    assert found.dtype == torch.int64
    assert found.tolist() == [[i for n in row for i in range(n)] for row in LENGTHS]


def one_kernel(query: Tensor, *args: Any, **options: Any) -> Tensor:
    """What PyTorch says its kernel does, segment by segment; it has none for a CPU."""
    asked = inspect.signature(varlen_attn).bind(query, *args, **options).arguments
    assert asked["window_size"] == (-1, 0)
    ends = asked["cu_seq_q"].tolist()
    assert asked["cu_seq_k"].tolist() == ends
    assert asked["max_q"] == asked["max_k"] == max(b - a for a, b in pairwise(ends))
    heads, kv_heads = query.size(1), asked["key"].size(1)
    assert asked.get("enable_gqa", False) is (heads != kv_heads)
    out = torch.empty_like(query)
    for start, stop in pairwise(ends):
        for head in range(heads):
            q, k, v = (
                x[start:stop, head * x.size(1) // heads].float()
                for x in (query, asked["key"], asked["value"])
            )
            scores = (q @ k.t() / query.size(-1) ** 0.5).masked_fill(
                torch.ones(stop - start, stop - start).triu(1).bool(), -torch.inf
            )
            out[start:stop, head] = (scores.softmax(-1) @ v).to(out.dtype)
    return out


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_equals_attention_with_a_dense_mask(kv_heads: int) -> None:
    shapes = ((3, 4, 16, 8), (3, kv_heads, 16, 8), (3, kv_heads, 16, 8))
    mine = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    reference = [x.detach().clone().requires_grad_() for x in mine]
    got = attend_within(ALL, mine[0], mine[1], mine[2])
    query, key, value = (
        reference[0],
        *(x.repeat_interleave(4 // kv_heads, 1) for x in reference[1:]),
    )
    scores = (query @ key.transpose(-1, -2) / 8**0.5).masked_fill(~dense_mask(), -torch.inf)
    expected = scores.softmax(-1) @ value
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    slope = numbers(*got.shape, seed=9).detach()
    got.backward(slope)
    expected.backward(slope)
    for x, y in zip(mine, reference, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-5)


@given(starts=st.lists(st.sets(st.integers(1, 11)), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_any_segments_equal_a_dense_mask(starts: list[set[int]]) -> None:
    rows = [[0, *sorted(row)] for row in starts]
    filled = torch.tensor([row + [12] * (12 - len(row)) for row in rows], dtype=torch.int32)
    number = torch.tensor([[sum(at <= t for at in row) for t in range(12)] for row in rows])
    same = number.unsqueeze(1) == number.unsqueeze(2)
    mask = (same & torch.ones(12, 12).tril().bool()).unsqueeze(1)
    heads = [numbers(len(rows), 2, 12, 4, seed=i).detach() for i in range(3)]
    got = attend_within(Segments.from_starts(filled, 12, CPU), *heads)
    torch.testing.assert_close(got, attend(*heads, mask=mask), rtol=0, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dropout", [0.0, 1e-9], ids=["one kernel", "by length"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_on_a_gpu(kv_heads: int, dropout: float) -> None:
    device = torch.device("cuda")
    shapes = ((3, 4, 16, 8), (3, kv_heads, 16, 8), (3, kv_heads, 16, 8))
    near = [numbers(*shape, seed=i).detach().requires_grad_() for i, shape in enumerate(shapes)]
    there = [x.detach().to(device, torch.bfloat16).requires_grad_() for x in near]
    got = attend_within(Segments.from_starts(STARTS, 16, device), *there, dropout=dropout)
    expected = attend_within(ALL, *near)
    slope = numbers(*got.shape, seed=9).detach()
    gradients = torch.autograd.grad(got, there, slope.to(device, torch.bfloat16))
    wanted = torch.autograd.grad(expected, near, slope)
    for x, y in zip((got, *gradients), (expected, *wanted), strict=True):
        torch.testing.assert_close(x.float().cpu(), y, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_where_there_is_one_kernel_it_gets_all_segments(
    monkeypatch: pytest.MonkeyPatch, kv_heads: int
) -> None:
    shapes = ((3, 4, 16, 8), (3, kv_heads, 16, 8), (3, kv_heads, 16, 8))
    heads = [numbers(*shape, seed=i).detach().bfloat16() for i, shape in enumerate(shapes)]
    expected = attend_within(ALL, *heads)
    calls: list[int] = []

    def counted(query: Tensor, *args: Any, **options: Any) -> Tensor:
        calls.append(len(query))
        return one_kernel(query, *args, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", counted)
    monkeypatch.setattr(segments, "has_flash_attention", lambda device: True)
    got = attend_within(ALL, *heads)
    assert calls == [48]
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    # It has no dropout, no fp32 and no heads of any width.
    attend_within(ALL, *heads, dropout=0.5)
    attend_within(ALL, *(x.float() for x in heads))
    attend_within(ALL, *(x[..., :6] for x in heads))
    assert calls == [48]


def test_dropout_drops_weights_within_a_segment() -> None:
    query, key = (torch.zeros(3, 2, 16, 16) for _ in range(2))
    value = torch.eye(16).expand(3, 2, 16, 16)
    torch.manual_seed(5)
    weights = torch.stack([attend_within(ALL, query, key, value, dropout=0.25) for _ in range(50)])
    allowed = dense_mask()
    assert not weights.masked_select(~allowed).any()
    # Each is the same for all tokens that are seen, then dropped or made up for the dropped ones.
    even = allowed / allowed.sum(-1, keepdim=True) / 0.75
    kept = weights != 0
    torch.testing.assert_close(weights, kept * even)
    share = kept.masked_select(allowed).float().mean().item()
    assert share == pytest.approx(0.75, abs=0.01)
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("reset", [True, False], ids=["positions-reset", "positions-go-on"])
@pytest.mark.parametrize("pos_emb", ["rotary", "learned"])
def test_a_document_sees_itself_alone(pos_emb: str, reset: bool) -> None:
    model = tiny_model(pos_emb=pos_emb, num_kv_heads=2)
    shake(model)
    positions = positions_within(STARTS, 16) if reset else None
    whole = model(TOKENS, position_ids=positions, segments=ALL)
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            # Other texts around it leave every bit as it is.
            others = (TOKENS + 1) % 64
            others[row, own] = TOKENS[row, own]
            around = model(others, position_ids=positions, segments=ALL)
            assert torch.equal(around[row, own], whole[row, own])
            assert length == 16 or not torch.equal(around[row], whole[row])
            places = None if reset else torch.arange(start, start + length)[None]
            alone = model(TOKENS[row : row + 1, own], position_ids=places)
            torch.testing.assert_close(whole[row, own], alone[0], rtol=0, atol=1e-5)
            start += length
    together = model(TOKENS, position_ids=positions)
    assert not torch.allclose(whole[0, 5:], together[0, 5:], atol=1e-2)


def test_positions_alone_keep_documents_in_sight() -> None:
    for pos_emb in ("rotary", "learned"):
        model = tiny_model(pos_emb=pos_emb)
        shake(model)
        plain = model(TOKENS)
        reset = model(TOKENS, position_ids=positions_within(STARTS, 16))
        torch.testing.assert_close(reset[0, :5], plain[0, :5], rtol=0, atol=1e-5)
        assert (reset[0, 5:] - plain[0, 5:]).abs().amax(-1).min() > 1e-3
        changed = TOKENS.clone()
        changed[0, 0] = (changed[0, 0] + 1) % 64
        seen = model(changed, position_ids=positions_within(STARTS, 16))
        assert (seen[0] != reset[0]).any(-1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputed_activations_give_equal_bits(dtype: torch.dtype) -> None:
    results = []
    for recompute in (False, True):
        model = tiny_model(
            checkpoint_activations=recompute, hidden_dropout=0.2, attention_dropout=0.2
        ).to(dtype)
        torch.manual_seed(11)
        logits = model(TOKENS, position_ids=positions_within(STARTS, 16), segments=ALL)
        mask = torch.ones(3, 16, dtype=torch.bool)
        loss = loss_sum(logits, TOKENS.roll(-1, 1), mask, SINGLE)
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        results.append((loss.detach(), *[g for g in gradients if g is not None]))
    assert len(results[0]) > 20
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_the_gradient_of_an_order_is_the_order_back() -> None:
    x = numbers(48, 2, seed=3)
    by = ALL.by_length
    got = segments.reordered(x, by.order, by.inverse)
    assert torch.equal(got, x[by.order])
    slope = numbers(48, 2, seed=4).detach()
    (found,) = torch.autograd.grad(got, x, slope)
    (expected,) = torch.autograd.grad(x[by.order], x, slope)
    assert torch.equal(found, expected)
