"""Protects a soft prompt: vectors in front of a text do what as many tokens in front of it would do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron.model import GPT2Model
from megatron.neox_arguments.sections.variants import SoftPrompt
from tests.support.models import shake, tiny_model

VOCAB, COUNT = 64, 3
# Ids from 60 on stand for the prompt alone.
TOKENS = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(4))
IDS = torch.tensor([61, 60, 63])
OPTIONS: list[dict[str, Any]] = [
    {"pos_emb": "rotary"},
    {"pos_emb": "alibi"},
    {"pos_emb": "rpe", "sliding_window_width": 5},
    {"pos_emb": "none", "embedding_scale": 2.0, "num_kv_heads": 1},
    {"pos_emb": "rotary", "checkpoint_activations": True},
]


def with_prompt(**options: Any) -> tuple[GPT2Model, GPT2Model]:
    """A model whose prompt is what the tokens ``IDS`` are, and the same one without."""
    plain = tiny_model(VOCAB, no_weight_tying=True, **options)
    shake(plain)
    model = tiny_model(VOCAB, no_weight_tying=True, soft_prompt=SoftPrompt(COUNT), **options)
    table = plain.state_dict()["sequential.0.word_embeddings.weight"]
    prompt = table[IDS] * options.get("embedding_scale", 1.0)
    model.load_state_dict({**plain.state_dict(), "sequential.0.soft_embedding_weight": prompt})
    return model, plain


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_vectors_are_like_tokens_in_front(options: dict[str, Any]) -> None:
    model, plain = with_prompt(**options)
    longer = torch.cat((IDS.expand(2, -1), TOKENS), dim=1)
    got, expected = model(TOKENS), plain(longer)[:, COUNT:]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    slopes = torch.linspace(-1, 1, got.numel()).view_as(got)
    (got * slopes).mean().backward()
    (expected * slopes).mean().backward()
    prompt = model.get_parameter("sequential.0.soft_embedding_weight").grad
    rows = plain.get_parameter("sequential.0.word_embeddings.weight").grad
    assert prompt is not None
    assert rows is not None
    scale = options.get("embedding_scale", 1.0)
    torch.testing.assert_close(prompt * scale, rows[IDS], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("options", [*OPTIONS[:4], {"pos_emb": "learned"}], ids=str)
@torch.no_grad()
def test_a_cache_holds_the_prompt_once(options: dict[str, Any]) -> None:
    """A text of five tokens and one of three, then one token at a time, up to the last position."""
    model, _ = with_prompt(**options)
    model.eval()
    tokens = torch.cat((TOKENS, TOKENS[:, :4]), dim=1)
    whole, cache = model(tokens), model.make_cache(2, 16)
    lengths, rows = torch.tensor([5, 3]), torch.arange(2)
    got = model(tokens[:, :5], cache, torch.arange(5).expand(2, 5), only=lengths - 1)
    torch.testing.assert_close(got[:, 0], whole[rows, lengths - 1], rtol=1e-4, atol=1e-5)
    for step in range(11):
        places = lengths + step
        got = model(tokens[rows, places].unsqueeze(1), cache, places.unsqueeze(1))
        torch.testing.assert_close(got[:, 0], whole[rows, places], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_tokens_keep_their_rows_of_a_learned_table() -> None:
    """Prompts have no row: as many positions as without suffice for a whole sequence."""
    model, plain = with_prompt(pos_emb="learned")
    tokens = torch.cat((TOKENS, TOKENS[:, :4]), dim=1)
    embedding = model.sequential[0]
    both = embedding(tokens, with_prompt=True)
    assert torch.equal(both[:, COUNT:], plain.sequential[0](tokens))
    assert torch.equal(both[1, :COUNT], embedding.soft_embedding_weight)
    assert model(tokens).shape == (2, 16, VOCAB)


def test_it_starts_evenly_spread_over_its_range() -> None:
    model = tiny_model(hidden_size=512, soft_prompt=SoftPrompt(64, init_range=0.2))
    prompt = model.get_parameter("sequential.0.soft_embedding_weight")
    assert prompt.abs().max().item() == pytest.approx(0.2, rel=1e-3)
    assert prompt.std().item() == pytest.approx(0.2 / 3**0.5, rel=0.02)
