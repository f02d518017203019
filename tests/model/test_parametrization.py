"""Protects the maximal update parametrisation: what it computes, and how its weights start."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from megatron.model import GPT2Model, Parametrization, shapes_of
from megatron.model.parametrization import maximal_update
from megatron.neox_arguments.sections import ModelArgs, MupArgs
from megatron.neox_arguments.sections.model import Init
from tests.support.models import shake, tiny_args, tiny_model

VOCAB = 64
TOKENS = torch.randint(0, VOCAB, (2, 16), generator=torch.Generator().manual_seed(4))
MULTIPLIERS = MupArgs(
    use_mup=True,
    mup_init_scale=1.5,
    mup_attn_temp=0.5,
    mup_output_temp=0.25,
    mup_embedding_mult=3.0,
    mup_rp_embedding_mult=2.0,
)


def following(base: ModelArgs, model: ModelArgs, vocab: int = VOCAB) -> Parametrization:
    """That of ``model``, with all multipliers, after a ``base`` model of another vocabulary."""
    return maximal_update(
        MULTIPLIERS, model, base=shapes_of(base, 2 * vocab), here=shapes_of(model, vocab)
    )


def mup_model(**changes: Any) -> GPT2Model:
    """32 wide, after one that is 8 wide."""
    made = following(tiny_args(**{**changes, "hidden_size": 8}), tiny_args(**changes))
    return tiny_model(VOCAB, parametrization=made, **changes)


def as_standard_weights(name: str, weight: Tensor) -> Tensor:
    """The weight with which a standard model of untied ends computes what the muP model does.

    Heads are 8 wide here and 2 in the base model; the model is 4 times as wide.
    """
    if name == "sequential.0.word_embeddings.weight":
        return weight * 3.0
    if name == "sequential.0.position_embeddings.weight":
        return weight * 2.0
    if name == "sequential.6.final_linear.weight":
        return weight / (4 * 0.25)
    if name.endswith("rpe.weight"):
        return weight * (2.0 * math.sqrt(2) / math.sqrt(8))
    if "query_key_value" in name:
        by_head = weight.view(4, 3, 8, -1)
        scaled = by_head * torch.tensor([math.sqrt(8) / (8 * 0.5), 1, 1]).view(1, 3, 1, 1)
        return scaled.reshape(weight.shape)
    return weight


@pytest.mark.parametrize("pos_emb", ["rotary", "learned", "rpe"])
def test_it_is_a_standard_model_with_other_weights(pos_emb: str) -> None:
    """Logits and, through the chain rule, gradients."""
    changes = {"pos_emb": pos_emb, "no_weight_tying": True, "embedding_scale": 0.7}
    model, plain = mup_model(**changes), tiny_model(VOCAB, **changes)
    shake(model)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    others = {name: as_standard_weights(name, weight) for name, weight in weights.items()}
    expected = torch.func.functional_call(plain, others, (TOKENS,))
    got = model(TOKENS)
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    slopes = torch.linspace(-1, 1, got.numel()).view_as(got)
    (got * slopes).mean().backward()
    (expected * slopes).mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-3, atol=1e-6)


def test_a_tied_head_reads_what_an_untied_one_does() -> None:
    tied, untied = mup_model(), mup_model(no_weight_tying=True)
    shake(tied)
    table = tied.state_dict()["sequential.0.word_embeddings.weight"]
    untied.load_state_dict({**tied.state_dict(), "sequential.6.final_linear.weight": table})
    assert torch.equal(tied(TOKENS), untied(TOKENS))


@pytest.mark.parametrize("options", [{}, {"sliding_window_width": 5}, {"num_kv_heads": 2}])
@torch.no_grad()
def test_a_cache_has_the_same_scores(options: dict[str, Any]) -> None:
    model = mup_model(**options).eval()
    shake(model)
    whole, cache = model(TOKENS), model.make_cache(2, 16)
    for place in range(16):
        at = torch.full((2, 1), place)
        got = model(TOKENS[:, place : place + 1], cache, at)
        torch.testing.assert_close(got[:, 0], whole[:, place], rtol=1e-4, atol=1e-5)


BASE: dict[str, Any] = {"num_layers": 3, "hidden_size": 64, "no_weight_tying": True}


@pytest.mark.parametrize("scheme", get_args(Init))
def test_weights_start_as_the_base_models_do(scheme: str) -> None:
    """Between two widths at its deviation / sqrt(r), else at its deviation; both times mup_init_scale."""
    shape = BASE | {"init_method": scheme, "output_layer_init_method": scheme, "pos_emb": "learned"}
    wide = shape | {"hidden_size": 192}
    base = dict(tiny_model(512, **shape).named_parameters())
    made = following(tiny_args(**shape), tiny_args(**wide), 512)
    model = dict(tiny_model(512, parametrization=made, **wide).named_parameters())
    for name, ratio in (
        ("sequential.0.word_embeddings.weight", 1),
        ("sequential.7.final_linear.weight", 1),
        ("sequential.3.attention.query_key_value.weight", 3),
        ("sequential.3.attention.dense.weight", 3),
        ("sequential.3.mlp.linear1.weight", 3),
        ("sequential.3.mlp.linear2.weight", 3),
    ):
        expected = 1.5 * base[name].std().item() / math.sqrt(ratio)
        assert model[name].std().item() == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize("scheme", get_args(Init))
def test_the_base_model_starts_as_a_standard_one(scheme: str) -> None:
    shape = tiny_args(init_method=scheme, output_layer_init_method=scheme)
    shapes = shapes_of(shape, VOCAB)
    made = maximal_update(MupArgs(use_mup=True), shape, base=shapes, here=shapes)
    same = {"init_method": scheme, "output_layer_init_method": scheme}
    plain = tiny_model(VOCAB, **same).state_dict()
    for name, tensor in tiny_model(VOCAB, parametrization=made, **same).state_dict().items():
        assert torch.equal(tensor, plain[name]), name


def test_ratios_are_those_of_the_inputs_of_each_matrix() -> None:
    """The MLP grows twice as much as the rest; what is no matrix between widths has none."""
    base, model = tiny_args(hidden_size=8, expansion_factor=2), tiny_args(expansion_factor=4)
    made = following(base, model)
    assert made.ratio("sequential.2.mlp.linear1.weight") == 4
    assert made.ratio("sequential.3.mlp.linear2.weight") == 8
    assert made.ratio("sequential.3.attention.query_key_value.query_weight") == 4
    for name in ("mlp.linear2.bias", "input_layernorm.weight"):
        assert made.ratio(f"sequential.3.{name}") == 1
    assert made.ratio("sequential.0.word_embeddings.weight") == 1
