"""Protects how layers are dealt out to pipeline stages: all, in order, as evenly as the method says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.neox_arguments.pipe_partition import PartitionError, stage_layers
from megatron.neox_arguments.sections import ModelArgs

BY_TYPE = "type:transformer|mlp"


def cuts(layers: int, stages: int, method: str, **shape: Any) -> list[int]:
    """Where stages begin, and the end."""
    model = ModelArgs(
        num_layers=layers,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=16,
        max_position_embeddings=16,
        pos_emb="rotary",
        **shape,
    )
    found = stage_layers(model, stages, method, 512)
    return [found[0].start, *(stage.stop for stage in found)]


# 0 embedding, 1 a function, 2 ... L + 1 transformer layers, a function, the norm, the head.
@pytest.mark.parametrize(
    ("layers", "stages", "method", "expected"),
    [
        (2, 1, BY_TYPE, [0, 7]),
        (2, 2, BY_TYPE, [0, 3, 7]),
        (24, 4, BY_TYPE, [0, 8, 14, 20, 29]),
        # An odd number: the first stages hold more.
        (5, 2, BY_TYPE, [0, 5, 10]),
        (5, 2, " TYPE:ParallelTransformerLayerPipe", [0, 5, 10]),
        # More stages than what is counted: every stage still has weights.
        (2, 4, BY_TYPE, [0, 2, 3, 5, 7]),
        (2, 2, "type:embedding|linear", [0, 4, 7]),
        (2, 2, "uniform", [0, 4, 7]),
        # A layer has 12 h² = 49,152 weights and a little; a table 512 h = 32,768.
        (2, 2, "parameters", [0, 3, 7]),
        (4, 3, "parameters", [0, 3, 5, 9]),
    ],
)
def test_cuts(layers: int, stages: int, method: str, expected: list[int]) -> None:
    assert cuts(layers, stages, method, no_weight_tying=True) == expected


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({"stages": 6}, "pipe_parallel_size", "6 stages for 5 layers with weights"),
        ({"method": "best"}, "pipe_partition_method", "found 'best'; ways are parameters, uniform"),
        ({"method": "type:mlp"}, "pipe_partition_method", "'mlp' finds none of the layers: Embed"),
        # A function is no class, whatever GPT-NeoX calls it.
        ({"method": "type:_block"}, "pipe_partition_method", "'_block' finds none"),
        ({"method": "type:("}, "pipe_partition_method", "'(' is no regular expression: "),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], key: str, text: str) -> None:
    with pytest.raises(PartitionError) as error:
        cuts(**{"layers": 2, "stages": 2, "method": BY_TYPE, **changes})
    assert error.value.key == key
    assert str(error.value).startswith(text)


@settings(deadline=None)  # a busy machine is no failure
@given(
    layers=st.integers(1, 40),
    stages=st.integers(1, 12),
    method=st.sampled_from([BY_TYPE, "uniform", "parameters"]),
    tied=st.booleans(),
)
def test_every_layer_is_in_one_stage_and_no_stage_is_empty(
    layers: int, stages: int, method: str, tied: bool
) -> None:
    shape = {"no_weight_tying": not tied}
    if stages > layers + 3:
        with pytest.raises(PartitionError):
            cuts(layers, stages, method, **shape)
        return
    found = cuts(layers, stages, method, **shape)
    assert found == sorted(set(found))
    assert (found[0], found[-1], len(found)) == (0, layers + 5, stages + 1)
    with_weights = [0, *range(2, layers + 2), layers + 3, layers + 4]
    held = [sum(a <= layer < b for layer in with_weights) for a, b in pairwise(found)]
    assert min(held) > 0
    blocks = [len(range(max(a, 2), min(b, layers + 2))) for a, b in pairwise(found)]
    if method == BY_TYPE and stages <= layers:
        assert max(blocks) - min(blocks) <= 1
