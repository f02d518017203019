"""Names, orders and splits of the model's tensors, in literal values."""

from __future__ import annotations

import pytest
import torch

from megatron.errors import ConfigError
from megatron.model import layout
from tests.support.models import tiny_args, tiny_model
from tests.support.whole_layers import join_layer, join_shards


def names(**changes: object) -> set[str]:
    return set(tiny_model(num_layers=1, **changes).state_dict())


BLOCK = {
    f"sequential.2.{name}"
    for name in (
        "input_layernorm.weight",
        "input_layernorm.bias",
        "attention.query_key_value.weight",
        "attention.query_key_value.bias",
        "attention.dense.weight",
        "attention.dense.bias",
        "post_attention_layernorm.weight",
        "post_attention_layernorm.bias",
        "mlp.linear1.weight",
        "mlp.linear1.bias",
        "mlp.linear2.weight",
        "mlp.linear2.bias",
    )
}


def test_names_of_a_tied_model_have_no_head() -> None:
    assert names() == BLOCK | {
        "sequential.0.word_embeddings.weight",
        "sequential.4.norm.weight",
        "sequential.4.norm.bias",
    }


def test_names_of_an_untied_model_with_learned_positions() -> None:
    assert names(no_weight_tying=True, pos_emb="learned") - BLOCK == {
        "sequential.0.word_embeddings.weight",
        "sequential.0.position_embeddings.weight",
        "sequential.4.norm.weight",
        "sequential.4.norm.bias",
        "sequential.5.final_linear.weight",
    }


def test_names_without_biases_and_with_rms_norms() -> None:
    got = names(norm="rmsnorm", use_bias_in_attn_linear=False, use_bias_in_mlp=False)
    assert {n for n in got if n.startswith("sequential.2.")} == {
        f"sequential.2.{name}"
        for name in (
            "input_layernorm.scale",
            "attention.query_key_value.weight",
            "attention.dense.weight",
            "post_attention_layernorm.scale",
            "mlp.linear1.weight",
            "mlp.linear2.weight",
        )
    }
    assert "sequential.2.input_layernorm.bias" not in names(use_bias_in_norms=False)


def test_the_layer_list() -> None:
    layers = tiny_model(num_layers=3, no_weight_tying=True).sequential
    kinds = {index: type(layer).__name__ for index, layer in enumerate(layers)}
    assert kinds.pop(layout.EMBEDDING) == "Embedding"
    assert kinds.pop(layout.final_norm(3)) == "FinalNorm"
    assert kinds.pop(layout.head(3)) == "Head"
    for index in (1, 5):  # the functions before and behind the transformer layers
        assert kinds.pop(index) == "Identity"
    assert kinds == {2: "TransformerLayer", 3: "TransformerLayer", 4: "TransformerLayer"}
    assert min(kinds) == layout.FIRST_BLOCK


def test_shapes_with_grouped_heads_and_a_gated_mlp() -> None:
    model = tiny_model(num_kv_heads=2, activation="swiglu", intermediate_size=144)
    shapes = {n.split(".", 2)[2]: tuple(p.shape) for n, p in model.named_parameters() if ".2." in n}
    assert shapes["attention.query_key_value.weight"] == (32 + 16 + 16, 32)
    assert shapes["attention.query_key_value.bias"] == (64,)
    assert shapes["mlp.linear1.weight"] == (96, 32)
    assert shapes["mlp.linear2.weight"] == (32, 48)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"no_weight_tying": True, "pos_emb": "learned"},
        {"num_kv_heads": 1, "activation": "swiglu", "norm": "rmsnorm", "use_bias_in_mlp": False},
        {"use_bias_in_norms": False, "use_bias_in_attn_linear": False},
    ],
)
def test_parameter_count_is_what_the_configuration_announces(changes: dict[str, object]) -> None:
    model = tiny_model(64, **changes)
    assert sum(p.numel() for p in model.parameters()) == tiny_args(**changes).parameter_count(64)


def test_head_views_without_groups_are_per_head() -> None:
    # Two heads of one feature: rows q0 k0 v0 q1 k1 v1.
    fused = torch.arange(6.0).view(1, 1, 6)
    query, key, value = layout.head_views(fused, 2, 2)
    assert query.flatten().tolist() == [0, 3]
    assert key.flatten().tolist() == [1, 4]
    assert value.flatten().tolist() == [2, 5]


def test_head_views_with_groups_are_all_q_all_k_all_v() -> None:
    query, key, value = layout.head_views(torch.arange(8.0).view(1, 1, 8), 4, 2)
    assert query.flatten().tolist() == [0, 1, 2, 3]
    assert key.flatten().tolist() == [4, 5]
    assert value.flatten().tolist() == [6, 7]


def test_a_rank_takes_its_part_of_every_piece() -> None:
    # Four query heads and two key/value heads of one feature, on two ranks.
    model = tiny_args(hidden_size=4, num_kv_heads=2)
    split = layout.partition(model, "attention.query_key_value.bias", (8,))
    rows = torch.arange(8)
    assert layout.take_shard(rows, split, 0, 2).tolist() == [0, 1, 4, 6]
    assert layout.take_shard(rows, split, 1, 2).tolist() == [2, 3, 5, 7]


def test_a_rank_takes_value_and_gate_of_its_units() -> None:
    model = tiny_args(activation="swiglu", intermediate_size=6)  # two units: two values, two gates
    split = layout.partition(model, "mlp.linear1.weight", (4, 32))
    rows = torch.arange(4)
    assert layout.take_shard(rows, split, 0, 2).tolist() == [0, 2]
    assert layout.take_shard(rows, split, 1, 2).tolist() == [1, 3]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_shards_of_every_parameter_join_to_the_whole(kv_heads: int, size: int) -> None:
    changes = {"num_kv_heads": kv_heads, "activation": "swiglu", "intermediate_size": 144}
    model = tiny_model(no_weight_tying=True, **changes)
    for index, layer in enumerate(model.sequential):
        for name, whole in layer.named_parameters():
            split = layout.partition(model.model_args, name, whole.shape)
            shards = [layout.take_shard(whole, split, rank, size) for rank in range(size)]
            assert torch.equal(join_shards(shards, split), whole), (index, name)
            if split is not None:
                assert shards[0].numel() * size == whole.numel(), (index, name)


def test_neighbours_hold_the_same_key_value_head_where_there_are_fewer_than_ranks() -> None:
    # Four query heads and two key/value heads of one feature, on four ranks.
    model = tiny_args(hidden_size=4, num_kv_heads=2)
    rows = torch.arange(8)
    parts = {
        name: [
            layout.take_shard(rows, layout.partition(model, name, (8,)), rank, 4).tolist()
            for rank in range(4)
        ]
        for name in (
            "attention.query_key_value.query_bias",
            "attention.query_key_value.key_value_bias",
        )
    }
    assert list(parts.values()) == [
        [[0], [1], [2], [3]],
        [[4, 6], [4, 6], [5, 7], [5, 7]],
    ]
    shards = [
        {name: torch.tensor(by_rank[rank]) for name, by_rank in parts.items()} for rank in range(4)
    ]
    joined = join_layer(model, shards)
    assert {name: t.tolist() for name, t in joined.items()} == {
        "attention.query_key_value.bias": [0, 1, 2, 3, 4, 5, 6, 7]
    }


def test_a_layer_joined_from_its_shards() -> None:
    model = tiny_model(no_weight_tying=True, num_kv_heads=2)
    for layer in model.sequential:
        whole = dict(layer.named_parameters())
        shards = [
            {
                name: layout.take_shard(
                    p, layout.partition(model.model_args, name, p.shape), rank, 2
                )
                for name, p in whole.items()
            }
            for rank in range(2)
        ]
        joined = join_layer(model.model_args, shards)
        assert joined.keys() == whole.keys()
        assert all(torch.equal(joined[name], whole[name]) for name in whole)


def test_which_parameters_every_rank_holds_whole() -> None:
    model = tiny_model(num_layers=1, pos_emb="learned", no_weight_tying=True)
    whole = {
        f"{index}.{name}"
        for index, layer in enumerate(model.sequential)
        for name, p in layer.named_parameters()
        if layout.partition(model.model_args, name, p.shape) is None
    }
    assert whole == {
        "0.position_embeddings.weight",
        "2.input_layernorm.weight",
        "2.input_layernorm.bias",
        "2.attention.dense.bias",
        "2.post_attention_layernorm.weight",
        "2.post_attention_layernorm.bias",
        "2.mlp.linear2.bias",
        "4.norm.weight",
        "4.norm.bias",
    }


def test_a_piece_that_ranks_cannot_share_evenly_is_refused() -> None:
    with pytest.raises(ConfigError, match="is 6, which 4 model-parallel ranks cannot share"):
        layout.take_shard(torch.zeros(14), layout.Partition(0, (8, 6)), 0, 4)


def test_query_key_value_by_what_its_rows_make() -> None:
    """Two heads of two features; a row is its number."""
    rows = torch.arange(12.0).unsqueeze(1)
    alike = tiny_args(num_attention_heads=2, hidden_size=4)
    found = layout.split_query_key_value(alike, rows)
    assert [part.flatten().tolist() for part in found] == [
        [0, 1, 6, 7],
        [2, 3, 8, 9],
        [4, 5, 10, 11],
    ]
    assert torch.equal(layout.join_query_key_value(alike, *found), rows)
    grouped = tiny_args(num_attention_heads=4, num_kv_heads=1, hidden_size=8)
    found = layout.split_query_key_value(grouped, rows)
    assert [part.flatten().tolist() for part in found] == [[*range(8)], [8, 9], [10, 11]]
    assert torch.equal(layout.join_query_key_value(grouped, *found), rows)


def test_a_gated_layer_is_value_then_gate() -> None:
    model = tiny_args(activation="swiglu", intermediate_size=6)
    value, gate = layout.split_gated(model, torch.arange(4.0))
    assert (value.tolist(), gate.tolist()) == ([0, 1], [2, 3])
    assert layout.join_gated(value, gate).tolist() == [0, 1, 2, 3]


def test_names_of_what_a_rank_holds() -> None:
    model = tiny_args(num_attention_heads=8, num_kv_heads=2)
    name = "attention.query_key_value.bias"
    assert layout.names_of_rank(model, name, 2) == (name,)
    assert layout.names_of_rank(model, name, 4) == (
        "attention.query_key_value.query_bias",
        "attention.query_key_value.key_value_bias",
    )
    assert layout.names_of_rank(model, "attention.dense.bias", 4) == ("attention.dense.bias",)
