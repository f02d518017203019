"""Protects the one place where rank numbers come from."""

import pytest

from megatron.errors import LaunchError
from megatron.runtime.world import World
from tests.support.ranks import run_ranks


def test_without_variables_it_is_one_process() -> None:
    world = World.from_env({})
    assert (world.rank, world.size, world.local_rank, world.num_nodes) == (0, 1, 0, 1)
    assert world.broadcast("x") == "x"
    assert world.all_gather(3) == [3]
    world.barrier()


def test_two_nodes_of_two() -> None:
    world = World.from_env(
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    )
    assert (world.node_rank, world.num_nodes, world.is_first, world.is_local_first) == (
        1,
        2,
        False,
        False,
    )


def test_deepspeeds_number_of_a_node_that_has_more_processes_than_the_first() -> None:
    env = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "3", "CROSS_RANK": "1"}
    assert World.from_env(env).node_rank == 1


def test_a_pod_of_kubeflow_is_one_process_where_it_says_so() -> None:
    world = World.from_env({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})
    assert (world.rank, world.local_rank, world.node_rank, world.num_nodes) == (1, 0, 1, 2)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE=4"),
    ],
)
def test_contradictions_are_said(env: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        World.from_env(env)


def collectives(world: World) -> tuple[str, list[int], str]:
    world.barrier()
    return world.broadcast(f"from {world.rank}", src=1), world.all_gather(world.rank), world.run_id


@pytest.mark.ranks
def test_object_collectives_between_processes() -> None:
    first, second = run_ranks(2, collectives)
    assert first == second
    assert first[:2] == ("from 1", [0, 1])
    assert len(first[2]) == 12
