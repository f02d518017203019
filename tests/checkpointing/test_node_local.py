"""Two nodes of one process each, and a disk in each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from megatron.checkpointing import find_checkpoint, load_checkpoint, load_weights
from megatron.runtime.world import World
from tests.checkpointing.engines import TinyNet, error_of, make_engine, save, train, weights_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.ranks


def on_two_nodes(world: World, shared: str) -> dict[str, Any]:
    assert (world.node_rank, world.local_rank, world.num_nodes) == (world.rank, 0, 2)
    own = Path(shared) / f"disk{world.rank}"
    others = Path(shared) / f"disk{1 - world.rank}"
    engine = make_engine(1, node_local=True)
    train(engine, world, 0, 2)
    save(engine, world, own, 2, node_local=True)
    train(engine, world, 2, 1)
    save(engine, world, own, 3, node_local=True, keep_last=1)
    expected = train(engine, world, 3, 2)

    fresh = make_engine(1, seed=2, node_local=True)
    load_checkpoint(fresh, find_checkpoint(own, world=world), world=world)
    alone = TinyNet(seed=2)
    load_weights(alone, find_checkpoint(own, world=World(node_rank=world.rank)))
    seen: dict[str, Any] = {
        "files": sorted(str(p.relative_to(own)) for p in own.rglob("*") if p.is_file()),
        "manifest": (own / "global_step3" / "manifest.json").read_bytes(),
        "alone": weights_of(alone) == weights_of(fresh.module),
        "resumed": train(fresh, world, 3, 2) == expected,
        "swapped": error_of(lambda: find_checkpoint(others, world=world)),
    }
    empty = own if world.rank == 0 else Path(shared) / "empty"
    seen["one empty"] = error_of(lambda: find_checkpoint(empty, world=world))
    # The mistake: private disks, and nobody says so.
    with mock.patch("megatron.checkpointing.publishing.VISIBILITY_TIMEOUT", 0.2):
        seen["not said"] = error_of(lambda: save(engine, world, own / "plain", 4))
    seen["left"] = list((own / "plain").iterdir()) if (own / "plain").exists() else []
    return seen


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(
        2,
        on_two_nodes,
        str(tmp_path_factory.mktemp("disks")),
        env_of_rank=lambda rank: {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
        },
    )


def test_each_disk_holds_its_part_and_the_same_manifest(nodes: list[Any]) -> None:
    shards = [[name for name in node["files"] if name.endswith("states.pt")] for node in nodes]
    assert shards == [
        [f"global_step3/{name}" for name in ("mp_rank_00_model_states.pt", zero)]
        for zero in (
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
        )
    ]
    assert nodes[0]["manifest"] == nodes[1]["manifest"]
    for node in nodes:
        assert "global_step3/configs/run.yml" in node["files"]
        assert {name.split("/")[0] for name in node["files"]} == {"global_step3", "latest"}


def test_a_run_goes_on_from_private_disks(nodes: list[Any]) -> None:
    assert [(node["resumed"], node["alone"]) for node in nodes] == [(True, True)] * 2


def test_nodes_in_another_order_are_told(nodes: list[Any]) -> None:
    for node in nodes:
        assert (
            "The part of node 1 is here: start the nodes in the order of the save"
            in (node["swapped"])
        )


def test_a_node_that_sees_nothing_stops_all(nodes: list[Any]) -> None:
    for node in nodes:
        assert "is not the same on all nodes" in node["one empty"]
        assert "global_step3" in node["one empty"]
        assert "use_node_local_storage: true" in node["one empty"]


def test_private_disks_that_nobody_told_of(nodes: list[Any]) -> None:
    for node in nodes:
        assert "rank 1 on" in node["not said"]
        assert "must be on a file system that all nodes share" in node["not said"]
        assert len(node["not said"].splitlines()) <= 10
        assert node["left"] == []
