"""Memory of a rank equals sums that were made by hand."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from megatron.monitor.estimates import Activations, MemoryEstimate, States, estimate_memory

SHAPE = {
    "parameters": 1000,
    "micro_batch_size": 2,
    "seq_length": 3,
    "num_layers": 5,
    "hidden_size": 10,
    "queries": 10,
    "kv_size": 4,
    "mlp_width": 7,
    "gated": True,
    "vocab_size": 11,
}
OF_STATES = {field.name for field in fields(States)}


def estimate(**given: Any) -> MemoryEstimate:
    of_states = {name: value for name, value in given.items() if name in OF_STATES}
    others = {name: value for name, value in given.items() if name not in OF_STATES}
    return estimate_memory(States(**of_states), Activations(**others))


# A layer keeps 10·3 + (10 + 2·4) + (10 + 4) + 2·10 + 3·7 = 103 numbers a token, and its backward pass
# adds 3·7 + (10 + 2·4) = 39.


@pytest.mark.parametrize(
    ("half", "stage", "expected"),
    [
        # weights, gradients, two moments; two copies under way and the step's temporary
        (False, 0, (4000, 4000, 8000, 2 * 4000 + 4000)),
        # fp32 copy and moments, among four; a bucket and the averaged share too
        (False, 1, (4000, 4000, 12_000 // 4, 3 * 4000 + 2 * 1000)),
        (True, 0, (2000, 2000, 12_000, 2 * 2000 + 4000)),
        (True, 1, (2000, 2000, 3000, 3 * 2000 + 2 * 1000)),
        (True, 2, (2000, 500, 3000, 3 * 2000 + 2 * 1000)),
        # a share of the weights, and all of them while they compute
        (True, 3, (500 + 2000, 500, 3000, 3 * 2000 + 2 * 1000)),
    ],
)
def test_memory_of_weights_and_optimizer(
    half: bool, stage: int, expected: tuple[int, int, int, int]
) -> None:
    m = estimate(**SHAPE, half_precision=half, zero_stage=stage, data_parallel_size=4)
    assert (m.weights, m.gradients, m.optimizer, m.buffers) == expected
    assert m.total == sum(expected) + m.activations


def test_a_small_bucket_bounds_what_is_under_way() -> None:
    common = SHAPE | {"half_precision": True, "zero_stage": 1}
    small = estimate(**common, data_parallel_size=2, bucket_size=100)
    assert small.buffers == 3 * 200 + 2 * 2000
    alone = estimate(**common, data_parallel_size=1)
    assert alone.buffers == 2000 + 2 * 4000


def test_what_is_offloaded_is_counted_apart() -> None:
    common = SHAPE | {"half_precision": True, "data_parallel_size": 4}
    optimizer = estimate(**common, zero_stage=2, offload_optimizer=True)
    assert (optimizer.weights, optimizer.gradients, optimizer.optimizer) == (2000, 500, 0)
    assert optimizer.buffers == 3 * 2000
    assert optimizer.host == 3000 + 2 * 1000
    both = estimate(
        **common, zero_stage=3, offload_optimizer=True, offload_weights=True, live_parameters=100
    )
    assert (both.weights, both.host) == (200, 3000 + 2 * 1000 + 500)
    nothing = estimate(**common, zero_stage=3)
    assert nothing.total + nothing.host == estimate(
        **common, zero_stage=3, offload_optimizer=True, offload_weights=True
    ).total + (3000 + 2 * 1000 + 500)


def test_memory_of_activations() -> None:
    common = SHAPE | {"half_precision": True, "zero_stage": 1, "data_parallel_size": 1}
    whole = estimate(**common)
    assert whole.activations == 6 * ((5 * 103 + 39) * 2 + 11 * (2 + 4 + 4))
    kept = estimate(**common, recomputed=1)
    assert kept.activations == 6 * ((5 * 10 + 103 + 39) * 2 + 11 * 10)
    assert kept.host == 0
    by_two = estimate(**common, recomputed=2)
    assert by_two.activations == 6 * ((3 * 10 + 2 * 103 + 39) * 2 + 11 * 10)
    shared = estimate(**common, recomputed=1, input_shards=4)
    assert kept.activations - shared.activations == 6 * 5 * (10 - 3) * 2
    away = estimate(**common, recomputed=1, input_shards=4, inputs_on_host=True)
    assert away.host == 6 * 5 * 3 * 2
    assert away.total + away.host == shared.total
    # Without recomputation there are no such inputs.
    assert estimate(**common, input_shards=4, inputs_on_host=True) == whole


def test_tensor_parallel_ranks_share_activations() -> None:
    common = SHAPE | {"half_precision": True, "zero_stage": 1, "data_parallel_size": 1}
    whole = estimate(**common).activations
    # A rank's own queries, 5 of 10 wide: in the projection, rotated, and twice as the attention's output,
    # in each layer, and in the gradients of one layer.
    narrow = estimate(**common | {"queries": 5}).activations
    assert whole - narrow == 6 * 2 * (5 * (5 * 4) + 5)
    # Half of each token's input and of the outputs of the two norms.
    shared = estimate(**common | {"queries": 5}, sequence_shards=2).activations
    assert narrow - shared == 6 * 2 * 5 * (3 * 5)
