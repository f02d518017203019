"""Protects relative positions: T5's buckets, T5's attention, and blocks that are views of diagonals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from megatron.model import relative_positions
from megatron.model.attention_kernels import Scores
from megatron.model.relative_positions import RelativePositionBias, buckets_of
from megatron.model.transformer import SelfAttention
from tests.support.models import SINGLE, tiny_args, tiny_model

HEADS, WIDTH = 4, 8


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 12), (7, 100), (2, 2)])
def test_buckets_are_t5s(buckets: int, farthest: int) -> None:
    back = torch.arange(300)
    theirs = T5Attention._relative_position_bucket(
        -back, bidirectional=False, num_buckets=buckets, max_distance=farthest
    )
    assert torch.equal(buckets_of(back, buckets, farthest), theirs)


def test_buckets_of_eight_up_to_twelve_tokens() -> None:
    """Four of one distance, then steps of the fourth root of 3: from 5.3, 6.9 and 9.1 on."""
    found = buckets_of(torch.arange(14), 8, 12).tolist()
    assert found == [0, 1, 2, 3, 4, 4, 5, 6, 6, 6, 7, 7, 7, 7]


def test_attention_is_t5s() -> None:
    """T5 divides no scores: its queries are ours by sqrt(8), its table is sqrt(8) of ours."""
    model = tiny_args(pos_emb="rpe", use_bias_in_attn_linear=False, rpe_max_distance=20)
    config = T5Config(
        d_model=32,
        d_kv=WIDTH,
        num_heads=HEADS,
        relative_attention_max_distance=20,
        dropout_rate=0.0,
        is_decoder=True,
        is_encoder_decoder=False,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    table = RelativePositionBias(model, groups=SINGLE)
    ours = SelfAttention(model, 0, groups=SINGLE, rotary=None, relative=table)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
        rows = [w.weight.view(HEADS, WIDTH, 32) for w in (theirs.q, theirs.k, theirs.v)]
        rows[0] = rows[0] * WIDTH**0.5
        ours.query_key_value.weight.copy_(torch.stack(rows, dim=1).flatten(0, 2))
        ours.dense.weight.copy_(theirs.o.weight)
        table.weight.copy_(theirs.relative_attention_bias.weight / WIDTH**0.5)
    x, length = torch.randn(2, 40, 32, generator=generator), 40
    ahead = torch.full((length, length), -torch.inf).triu(1)
    theirs_x, ours_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = theirs(theirs_x, mask=ahead[None, None])[0]
    got = ours(ours_x, None, None, None)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn(got.shape, generator=generator)
    (got * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours_x.grad, theirs_x.grad, rtol=1e-3, atol=1e-4)
    assert table.weight.grad is not None
    torch.testing.assert_close(
        table.weight.grad / WIDTH**0.5,
        theirs.relative_attention_bias.weight.grad,
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("start", "queries", "first", "keys"), [(0, 5, 0, 5), (4, 3, 0, 7), (6, 4, 3, 7), (9, 1, 9, 1)]
)
@pytest.mark.parametrize("window", [None, 4])
def test_blocks_of_masks_are_masks(
    start: int, queries: int, first: int, keys: int, window: int | None
) -> None:
    """Each number of a block is that of its own query and key, and so is its gradient."""
    of_block, of_pairs = (torch.randn(2, 12).requires_grad_() for _ in range(2))
    with torch.no_grad():
        of_pairs.copy_(of_block)
    places, like = torch.arange(12), torch.zeros(())
    block = Scores(window, by_distance=of_block).mask_of_block(start, queries, first, keys, like)
    pairs = Scores(window, by_distance=of_pairs).mask(
        places[start : start + queries], places[first : first + keys], like
    )
    assert torch.equal(block, pairs)
    weights = torch.randn(block.shape)
    for mask in (block, pairs):
        torch.where(mask.isinf(), 0.0, mask * weights).sum().backward()
    torch.testing.assert_close(of_block.grad, of_pairs.grad)


def test_each_head_has_a_column() -> None:
    model = tiny_args(pos_emb="rpe", rpe_num_buckets=4, rpe_max_distance=4)
    table = RelativePositionBias(model, groups=SINGLE)
    with torch.no_grad():
        table.weight.copy_(torch.arange(16.0).view(4, 4))
    added: Tensor = table(6)
    assert added.shape == (HEADS, 6)
    torch.testing.assert_close(added[1] / WIDTH**0.5, torch.tensor([1.0, 5.0, 9, 13, 13, 13]))


def test_buckets_are_found_once_for_all_layers_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once more where a text is longer; first asked for by generation, they serve training."""
    lengths: list[int] = []

    def counted(distances: Tensor, *more: int) -> Tensor:
        lengths.append(len(distances))
        return buckets_of(distances, *more)

    monkeypatch.setattr(relative_positions, "buckets_of", counted)
    model = tiny_model(pos_emb="rpe", num_layers=3)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    with torch.inference_mode():
        model(tokens[:, :8])
    for length in (4, 16, 8):
        model(tokens[:, :length]).sum().backward()
    assert lengths == [8, 16]
