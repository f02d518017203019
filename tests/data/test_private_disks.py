"""Two nodes that have the data at the same path, each on a disk of its own: mounted for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.splits import SampleCounts
from megatron.runtime import fs_probe
from megatron.runtime.world import World
from tests.data.token_files import data_args, letters, write_documents
from tests.support.mounts import move_to_disks_of, move_to_own_disk, require_mounts
from tests.support.ranks import run_outcomes, run_ranks

pytestmark = pytest.mark.ranks


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    require_mounts(folder)
    return folder


def two_nodes_of_two(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}


def start(world: World, disk: Path, use_shared_fs: bool) -> tuple[int, list[int], list[str]]:
    """The disk's number, the order of documents, and what lies in the index store afterwards."""
    fs_probe._PATIENCE = 1.0  # type: ignore[misc]
    prefix = disk / "d"
    if world.is_local_first:
        move_to_own_disk(disk)
        write_documents(prefix, letters(5))
    first = next(
        pid
        for node, local, pid in world.all_gather((world.node_rank, world.local_rank, os.getpid()))
        if node == world.node_rank and local == 0
    )
    if not world.is_local_first:
        move_to_disks_of(first)
    data = build_datasets(
        DataRequest(
            data_args(prefix, use_shared_fs=use_shared_fs),
            seq_length=8,
            seed=1234,
            wanted=SampleCounts(6, 0, 0),
        ),
        world,
    )
    assert data.train is not None
    world.barrier()
    (maps,) = data.train.stored
    names = sorted(path.name for path in (disk / "index_store").iterdir())
    return os.stat(disk).st_dev, maps.arrays["doc_idx"].tolist(), names


def test_each_node_builds_on_its_own_disk(disk: Path) -> None:
    found = run_ranks(4, start, disk, False, env_of_rank=two_nodes_of_two)
    devices, orders, names = zip(*found, strict=True)
    assert devices[0] == devices[1] != devices[2] == devices[3]
    assert sorted(orders[0]) == [0, 1, 2, 3, 4]
    assert list(orders) == [orders[0]] * 4
    assert list(names) == [names[0]] * 4
    assert len(names[0]) == 3  # the maps, and what is known of the files: bytes and contents
    assert list(disk.iterdir()) == []  # nothing of it was here


def test_the_probe_finds_that_they_are_not_shared(disk: Path) -> None:
    for outcome in run_outcomes(4, start, disk, True, env_of_rank=two_nodes_of_two):
        assert outcome.error is not None
        assert "use_shared_fs: false" in outcome.error
        assert "node 1 (" in outcome.error
        assert outcome.seconds < 10
