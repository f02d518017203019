"""The grid of ranks, in literal numbers, and the groups on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron.errors import ConfigError
from megatron.mpu import ParallelGroups
from megatron.mpu.grid import Coordinates, RankGrid
from megatron.runtime.world import World
from tests.support.ranks import run_ranks


def test_the_last_axis_varies_fastest() -> None:
    grid = RankGrid.of(16, pipe=2, context=2, model=2)
    assert grid == RankGrid(pipe=2, data=2, context=2, model=2)
    assert [tuple(grid.coordinates(r)) for r in (0, 1, 2, 4, 8, 15)] == [
        (0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 0, 1, 0),
        (0, 1, 0, 0),
        (1, 0, 0, 0),
        (1, 1, 1, 1),
    ]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 2), (3, 1, 2), (1, 4, 2), (2, 2, 3)])
def test_places_and_ranks_are_inverse(sizes: tuple[int, int, int]) -> None:
    pipe, context, model = sizes
    size = pipe * context * model * 5
    grid = RankGrid.of(size, pipe=pipe, context=context, model=model)
    places = [grid.coordinates(rank) for rank in range(size)]
    assert [grid.rank(place) for place in places] == list(range(size))
    assert len(set(places)) == size
    assert all(p < n for place in places for p, n in zip(place, grid.sizes, strict=True))


def test_lines_of_each_axis() -> None:
    grid = RankGrid.of(8, pipe=2, model=2)
    assert grid.lines("model") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert grid.lines("data") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.lines("pipe") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert grid.rank(Coordinates(pipe=1, data=0, context=0, model=1)) == 5


def test_lines_along_two_axes() -> None:
    grid = RankGrid.of(8, context=2, model=2)
    assert grid.lines("context") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.lines("data", "context") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert grid.lines("data", "context", "model") == [list(range(8))]


def test_a_world_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"pipe 4 x context 1 x model 2 = 8 .* the run has 4"):
        RankGrid.of(4, pipe=4, model=2)


def test_heads_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 ranks cannot share 3 key/value heads"):
        ParallelGroups(World(size=4), model_parallel_size=4, num_kv_heads=3)


def test_a_single_process_needs_no_groups() -> None:
    groups = ParallelGroups(World())
    assert groups.get_model_parallel_group() is None
    assert groups.get_data_parallel_group() is None
    assert groups.get_model_parallel_world_size() == groups.get_data_parallel_world_size() == 1


def sums(groups: ParallelGroups, *found: dist.ProcessGroup | None) -> list[float]:
    """Whose ranks are in each group, as digits."""
    digits = [torch.tensor([10.0**groups.world.rank]) for _ in found]
    for digit, group in zip(digits, found, strict=True):
        dist.all_reduce(digit, group=group)
    return [digit.item() for digit in digits]


def ranks_that_share_sequences(world: World) -> dict[str, Any]:
    groups = ParallelGroups(world, context_parallel_size=2)
    whole = groups.with_whole_sequences()
    split = ParallelGroups(world, model_parallel_size=2, context_parallel_size=2)
    return {
        "samples": (groups.place.data, groups.grid.data, whole.place.data, whole.grid.data),
        "tokens": (groups.get_gradient_rank(), groups.get_gradient_world_size()),
        "deepspeed's": (groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()),
        "after": (whole.get_gradient_rank(), whole.get_context_parallel_group()),
        "groups": sums(groups, groups.get_context_parallel_group(), groups.get_gradient_group()),
        "split": sums(split, split.get_context_parallel_group(), split.get_gradient_group()),
    }


def groups_of_four(world: World) -> dict[str, Any]:
    groups = ParallelGroups(world, model_parallel_size=2)
    value = torch.tensor([10.0**world.rank])
    dist.all_reduce(value, group=groups.get_model_parallel_group())
    data = torch.tensor([10.0**world.rank])
    dist.all_reduce(data, group=groups.get_data_parallel_group())
    all_data = ParallelGroups(world).get_data_parallel_group()
    return {
        "place": (groups.get_data_parallel_rank(), groups.get_tensor_model_parallel_rank()),
        "model": value.item(),
        "data": data.item(),
        "all": dist.get_world_size(all_data),
        "context": ranks_that_share_sequences(world),
    }


@pytest.mark.ranks
def test_groups_join_the_right_ranks() -> None:
    got = run_ranks(4, groups_of_four)
    assert [g["place"] for g in got] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [g["model"] for g in got] == [11.0, 11.0, 1100.0, 1100.0]
    assert [g["data"] for g in got] == [101.0, 1010.0, 101.0, 1010.0]
    assert {g["all"] for g in got} == {4}
    shared = [g["context"] for g in got]
    # Whoever shares sequences reads the same samples; in texts of any length all are copies.
    assert [s["samples"] for s in shared] == [
        (0, 2, 0, 4),
        (0, 2, 1, 4),
        (1, 2, 2, 4),
        (1, 2, 3, 4),
    ]
    assert [s["tokens"] for s in shared] == [(rank, 4) for rank in range(4)]
    assert [s["deepspeed's"] for s in shared] == [(rank, 4) for rank in range(4)]
    assert [s["after"] for s in shared] == [(rank, None) for rank in range(4)]
    assert [s["groups"] for s in shared] == [[11.0, 1111.0]] * 2 + [[1100.0, 1111.0]] * 2
    assert [s["split"] for s in shared] == [[101.0, 101.0], [1010.0, 1010.0]] * 2
