"""Two nodes of one process each, and a disk in each node."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
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

    def find(root: Path, **more: Any) -> Any:
        how = {"continues": True, "node_local": True} | more
        return find_checkpoint(root, world=world, **how)

    fresh = make_engine(1, seed=2, node_local=True)
    load_checkpoint(fresh, find(own), world=world)
    alone = TinyNet(seed=2)
    load_weights(alone, find_checkpoint(own, world=World(node_rank=world.rank)))
    seen: dict[str, Any] = {
        "files": sorted(str(p.relative_to(own)) for p in own.rglob("*") if p.is_file()),
        "manifest": (own / "global_step3" / "manifest.json").read_bytes(),
        "alone": weights_of(alone) == weights_of(fresh.module),
        "resumed": train(fresh, world, 3, 2) == expected,
        "swapped": error_of(lambda: find(others)),
        "not said at load": error_of(lambda: find(own, node_local=False)),
    }
    empty = own if world.rank == 0 else Path(shared) / "empty"
    seen["one empty"] = error_of(lambda: find_checkpoint(empty, world=world))
    seen["gathered"] = _go_on_from_one_folder(world, own, Path(shared) / "all", find) == expected
    _differ(world, own, Path(shared), find, seen)
    # The mistake: private disks, and nobody says so.
    with mock.patch("megatron.checkpointing.publishing.VISIBILITY_TIMEOUT", 0.2):
        seen["not said"] = error_of(lambda: save(engine, world, own / "plain", 4))
    seen["left"] = list((own / "plain").iterdir()) if (own / "plain").exists() else []
    return seen


def _go_on_from_one_folder(
    world: World, own: Path, together: Path, find: Callable[..., Any]
) -> list[float]:
    """The losses of a run that finds the parts of all nodes in one folder."""
    for rank in range(world.size):
        if rank == world.rank:
            shutil.copytree(own, together, dirs_exist_ok=True)
        world.barrier()
    engine = make_engine(1, seed=3)
    load_checkpoint(engine, find(together, node_local=False), world=world)
    return train(engine, world, 3, 2)


def _differ(
    world: World, own: Path, shared: Path, find: Callable[..., Any], seen: dict[str, Any]
) -> None:
    """What is found where one node's disk is a save behind, and where it is older than that."""
    place = shared / f"differ{world.rank}"
    for step in (1, 2, 3):
        manifest = json.loads((own / "global_step3" / "manifest.json").read_text())
        if world.rank == 0 or step < 3:
            shutil.copytree(own / "global_step3", place / f"global_step{step}")
            path = place / f"global_step{step}" / "manifest.json"
            path.write_text(json.dumps(manifest | {"step": step}))
            (place / "latest").write_text(f"global_step{step}")
    seen["one save behind"] = find(place).step
    if world.rank == 1:
        (place / "latest").write_text("global_step1")
    seen["two saves behind"] = error_of(lambda: find(place))
    if world.rank == 1:
        (place / "latest").unlink()
    seen["no latest"] = error_of(lambda: find(place))


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
            "this is the part of node 1 of 2: start the nodes in the order of the save"
            in (node["swapped"])
        )


def test_a_node_that_sees_nothing_stops_all(nodes: list[Any]) -> None:
    for node in nodes:
        assert "is not the same on all nodes" in node["one empty"]
        assert "global_step3" in node["one empty"]
        assert "use_node_local_storage: true" in node["one empty"]


def test_a_part_is_not_taken_for_all(nodes: list[Any]) -> None:
    for node in nodes:
        text = node["not said at load"]
        assert "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing" in text
        assert (
            "this is the part of node 0 of 2: set checkpoint: {use_node_local_storage: true}"
            in text
        )
        assert "SHARED/), and set load: SHARED and use_node_local_storage: false" in text


def test_parts_of_all_nodes_in_one_folder_are_one_checkpoint(nodes: list[Any]) -> None:
    assert [node["gathered"] for node in nodes] == [True, True]


def test_disks_that_a_kill_has_left_one_save_apart(nodes: list[Any]) -> None:
    assert [node["one save behind"] for node in nodes] == [2, 2]


def test_disks_that_differ_otherwise(nodes: list[Any]) -> None:
    for node in nodes:
        text = node["two saves behind"]
        assert re.search(r"node 0, \S+: global_step3\n +node 1, \S+: global_step1\n", text)
        assert "the newest that all nodes have: --iteration 2" in text
        assert re.match(
            r"rank 1 on \S+: load: \S+differ1 holds checkpoints but no file", node["no latest"]
        )


def test_private_disks_that_nobody_told_of(nodes: list[Any]) -> None:
    for node in nodes:
        assert "rank 1 on" in node["not said"]
        assert "must be on a file system that all nodes share" in node["not said"]
        assert len(node["not said"].splitlines()) <= 10
        assert node["left"] == []
