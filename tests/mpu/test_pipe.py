"""Protects what travels between stages outside the engine, and which of them are in a group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron.mpu import ParallelGroups
from megatron.mpu.pipe import handed_down, of_last_stage
from megatron.runtime.world import World
from tests.support.ranks import run_ranks


def travel(world: World) -> dict[str, Any]:
    groups = ParallelGroups(world, pipe_parallel_size=3)
    stage = float(groups.get_pipe_parallel_rank())
    # Not contiguous, as what is sent may be.
    own = torch.full((2, 3), stage).t()
    ends = groups.get_pipe_ends_group()
    sum_of_ends = torch.tensor(10.0**world.rank)
    if ends is not None:
        dist.all_reduce(sum_of_ends, group=ends)
    return {
        "handed down": handed_down(own + 10.0, groups).tolist(),
        "of the last": of_last_stage(own, groups).tolist(),
        "stages": (groups.get_pipe_parallel_rank(), groups.get_pipe_parallel_world_size()),
        "ends": sum_of_ends.item(),
    }


@pytest.mark.ranks
def test_three_stages() -> None:
    got = run_ranks(3, travel)
    assert [g["handed down"] for g in got] == [[[10.0, 10.0]] * 3] * 3
    assert [g["of the last"] for g in got] == [[[2.0, 2.0]] * 3] * 3
    assert [g["stages"] for g in got] == [(0, 3), (1, 3), (2, 3)]
    assert [g["ends"] for g in got] == [101.0, 10.0, 101.0]
