"""Protects what tensor parallelism sends: as many numbers as the closed form says, and no more.

For T tokens, h features, L layers and one micro-batch: each sum over ranks is one of T h numbers, of
which there are 2 + 4 L (the embedding and two in a layer forward, the head and two in a layer backward);
the loss adds 3 T. With sequence parallelism a sum becomes a reduce-scatter; every column-split map
gathers its input twice and every other sum gathers its gradient once, 3 + 6 L times T h; and the
gradients of norms and row-split biases are summed.

With context parallelism over C ranks each has T / C tokens; a layer hands over queries, keys and values of
all heads and gets the attention's output back, forward and backward: 8 h T / C numbers, less where there
are fewer key/value heads, down to one for each rank. Nothing else travels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from megatron.losses import loss_sum
from megatron.mpu import ParallelGroups, collectives
from megatron.runtime.world import World
from tests.support.models import tiny_model
from tests.support.ranks import run_ranks

BATCH, LENGTH, WIDTH, LAYERS = 2, 16, 32, 2
TOKENS = torch.randint(0, 64, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def counted(
    world: World,
    *,
    sequence_parallel: bool = False,
    recompute: bool = False,
    context: int = 1,
    kv_heads: int = 4,
) -> Counter[str]:
    """Numbers that a training step of one micro-batch sends, by the kind of collective."""
    sent: Counter[str] = Counter()

    def counting(kind: str, function: Callable[..., Any], whole: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            sent[kind] += args[whole].numel()  # the argument that is as large as the whole
            return function(*args, **options)

        return call

    groups = ParallelGroups(
        world,
        model_parallel_size=world.size // context,
        context_parallel_size=context,
        sequence_parallel=sequence_parallel,
    )
    model = tiny_model(
        64,
        groups=groups,
        num_layers=LAYERS,
        num_kv_heads=kv_heads,
        no_weight_tying=True,
        checkpoint_activations=recompute,
    )
    part = slice(0, LENGTH // context)
    with (
        mock.patch.object(dist, "all_reduce", counting("sum", dist.all_reduce, 0)),
        mock.patch.object(
            collectives, "_all_gather", counting("gather", collectives._all_gather, 0)
        ),
        mock.patch.object(
            collectives, "_reduce_scatter", counting("scatter", collectives._reduce_scatter, 1)
        ),
        mock.patch.object(
            dist, "all_to_all_single", counting("exchange", dist.all_to_all_single, 0)
        ),
    ):
        mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)[:, part]
        loss_sum(model(TOKENS[:, :-1][:, part]), TOKENS[:, 1:][:, part], mask, groups).backward()
    return sent


def of_all(world: World) -> list[Counter[str]]:
    cases: list[dict[str, Any]] = [
        {},
        {"sequence_parallel": True},
        {"recompute": True},
        {"context": 2},
        {"context": 2, "recompute": True},
        {"context": 2, "kv_heads": 2},
        {"context": 2, "kv_heads": 1},
    ]
    return [counted(world, **case) for case in cases]


@pytest.mark.ranks
def test_as_many_numbers_travel_as_the_closed_form_says() -> None:
    tokens = BATCH * LENGTH
    states = tokens * WIDTH
    plain, sequence, recomputed, *shared = run_ranks(2, of_all)[0]
    assert plain == {"sum": states * (2 + 4 * LAYERS) + 3 * tokens}
    assert sequence == {
        "scatter": states * (2 + 4 * LAYERS),
        "gather": states * (3 + 6 * LAYERS),
        # Weight and bias of each norm, the bias of each row-split map.
        "sum": 3 * tokens + 2 * WIDTH * (2 * LAYERS + 1) + WIDTH * 2 * LAYERS,
    }
    # A layer that is recomputed sums again, but for its last sum, which nothing needs.
    assert recomputed == {"sum": plain["sum"] + states * LAYERS}
    own = states // 2
    context, context_recomputed, two_kv, one_kv = shared
    assert context == {"exchange": own * 8 * LAYERS}
    assert context_recomputed == {"exchange": own * 12 * LAYERS}
    # Of 4 heads: 4 of queries, 2 of keys, 2 of values, 4 of the output, twice.
    assert two_kv == {"exchange": own * 6 * LAYERS}
    assert one_kv == two_kv
