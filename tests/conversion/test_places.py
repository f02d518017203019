"""Rows on their way between two layouts: none lost, none in another's place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.conversion.families import FAMILIES, Family
from megatron.conversion.parameters import Parameter, counterpart, parameters_of
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs
from tests.support.models import tiny_args
from tests.support.whole_layers import join_layer

BY_NAME = {family.name: family for family in FAMILIES}


def rows_of(family: str, model: ModelArgs, inner: str, count: int) -> dict[str, list[int]]:
    """Which of our rows each tensor of theirs has, for a parameter of the first transformer layer."""
    place = counterpart(BY_NAME[family], Parameter(layout.FIRST_BLOCK, inner, (count,)))
    found = place.split(model, torch.arange(count))
    return {name: rows.tolist() for name, rows in found.items()}


def test_rows_of_queries_keys_and_values() -> None:
    """Two heads of two features, each with its own key and value; then four with one for all."""
    inner = "attention.query_key_value.bias"
    whole = tiny_args(num_attention_heads=2, hidden_size=4)
    attention = "model.layers.0.self_attn"
    assert rows_of("llama", whole, inner, 12) == {
        f"{attention}.q_proj.bias": [0, 1, 6, 7],
        f"{attention}.k_proj.bias": [2, 3, 8, 9],
        f"{attention}.v_proj.bias": [4, 5, 10, 11],
    }
    assert rows_of("gpt_neox", whole, inner, 12) == {
        "gpt_neox.layers.0.attention.query_key_value.bias": [*range(12)]
    }
    shared = tiny_args(num_attention_heads=4, num_kv_heads=1, hidden_size=8)
    assert rows_of("qwen2", shared, inner, 12) == {
        f"{attention}.q_proj.bias": [*range(8)],
        f"{attention}.k_proj.bias": [8, 9],
        f"{attention}.v_proj.bias": [10, 11],
    }


def test_rows_of_value_and_gate() -> None:
    """The activation sees the second half of ours, and their gate_proj."""
    model = tiny_args(activation="swiglu", intermediate_size=9)
    assert rows_of("mistral", model, "mlp.linear1.bias", 6) == {
        "model.layers.0.mlp.up_proj.bias": [0, 1, 2],
        "model.layers.0.mlp.gate_proj.bias": [3, 4, 5],
    }


def test_names() -> None:
    def names(family: str, layer: int, inner: str) -> tuple[str, ...]:
        return counterpart(BY_NAME[family], Parameter(layer, inner, (1,))).names

    assert names("llama", 0, "word_embeddings.weight") == ("model.embed_tokens.weight",)
    assert names("llama", 5, "input_layernorm.scale") == ("model.layers.3.input_layernorm.weight",)
    assert names("gpt_neox", 5, "mlp.linear2.bias") == ("gpt_neox.layers.3.mlp.dense_4h_to_h.bias",)
    assert names("qwen3", 2, "attention.k_norm.scale") == (
        "model.layers.0.self_attn.k_norm.weight",
    )
    with pytest.raises(CheckpointError, match="LlamaForCausalLM has no such tensor"):
        names("llama", 0, "position_embeddings.weight")


@st.composite
def models_on_ranks(draw: st.DrawFn) -> tuple[Family, ModelArgs, int]:
    """A family with separate projections, a model, and a number of ranks that can share it."""
    family = draw(st.sampled_from([family for family in FAMILIES if family.name != "gpt_neox"]))
    heads = draw(st.sampled_from([4, 8]))
    model = ModelArgs(
        num_layers=1,
        hidden_size=8 * heads,
        num_attention_heads=heads,
        num_kv_heads=draw(st.sampled_from([1, 2, 4, heads])),
        head_dim=draw(st.sampled_from([None, 6])),
        seq_length=8,
        max_position_embeddings=8,
        pos_emb="rotary",
        norm="rmsnorm",
        activation="swiglu",
        intermediate_size=3 * draw(st.sampled_from([8, 24])),
        use_bias_in_attn_linear=draw(st.booleans()),
        use_bias_in_mlp=draw(st.booleans()),
        no_weight_tying=draw(st.booleans()),
    )
    return family, model, draw(st.sampled_from([1, 2, 4]))


@settings(deadline=None)
@given(models_on_ranks())
def test_pieces_join_and_so_do_ranks(drawn: tuple[Family, ModelArgs, int]) -> None:
    family, model, size = drawn
    layers: dict[int, dict[str, torch.Tensor]] = {}
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters_of(model, rows=16):
        whole = torch.rand(parameter.shape, generator=generator)
        place = counterpart(family, parameter)
        pieces = place.split(model, whole)
        assert {name: tuple(p.shape) for name, p in pieces.items()} == place.shapes(model)
        assert torch.equal(place.join(model, list(pieces.values())), whole)
        layers.setdefault(parameter.layer, {})[parameter.inner] = whole
    for tensors in layers.values():
        shards = [
            {
                name: layout.take_shard(
                    tensor, layout.partition(model, name, tensor.shape), rank, size
                )
                for inner, tensor in tensors.items()
                for name in layout.names_of_rank(model, inner, size)
            }
            for rank in range(size)
        ]
        joined = join_layer(model, shards)
        assert joined.keys() == tensors.keys()
        assert all(torch.equal(joined[name], tensors[name]) for name in tensors)
