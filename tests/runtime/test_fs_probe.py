"""Shared or not: the probe with two "nodes", whose disks are two folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from megatron.runtime import fs_probe
from megatron.runtime.fs_probe import probe_file_systems
from megatron.runtime.world import World
from tests.support.late_listing import LateListing
from tests.support.ranks import run_outcomes, run_ranks


def two_nodes(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def probe(world: World, roots: list[Path], use_shared_fs: bool) -> list[str]:
    """What rank 0 says."""
    lines: list[str] = []

    def info(text: str, *args: Any) -> None:
        lines.append(text % args)

    fs_probe.log.info = info  # type: ignore[method-assign, assignment]
    fs_probe._PATIENCE = 1.0  # type: ignore[misc]
    probe_file_systems(roots[world.rank], world, use_shared_fs=use_shared_fs)
    return lines


@pytest.mark.ranks
@pytest.mark.parametrize("use_shared_fs", [True, False])
def test_one_folder(tmp_path: Path, use_shared_fs: bool) -> None:
    root = tmp_path / "root"
    lines, others = run_ranks(2, probe, [root, root], use_shared_fs, env_of_rank=two_nodes)
    assert others == []
    assert (lines == []) == use_shared_fs
    if lines:
        assert "one folder for the nodes 0, 1" in lines[0]
        assert "use_shared_fs: true" in lines[0]
    assert list(root.iterdir()) == []


@pytest.mark.ranks
def test_private_folders(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    assert run_ranks(2, probe, roots, False, env_of_rank=two_nodes) == [[], []]
    for outcome in run_outcomes(2, probe, roots, True, env_of_rank=two_nodes):
        assert outcome.error is not None
        assert "use_shared_fs: false" in outcome.error
        assert "node 1 (" in outcome.error
        assert re.search(r"a file that node 0 \([\w.-]+\) has written there", outcome.error)


def probe_own_disks(world: World, roots: list[Path]) -> None:
    fs_probe._PATIENCE = 10_000.0  # type: ignore[misc]
    fs_probe.is_of_one_host = lambda path: path == str(roots[world.rank])
    probe_file_systems(roots[world.rank], world, use_shared_fs=True)


@pytest.mark.ranks
def test_nobody_waits_for_another_host_on_a_disk_of_ones_own(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for outcome in run_outcomes(2, probe_own_disks, roots, env_of_rank=two_nodes):
        assert "use_shared_fs: false" in (outcome.error or "")


def probe_late(world: World, root: Path, patience: float) -> None:
    """Node 1 sees new entries a second late."""
    fs_probe._PATIENCE = patience  # type: ignore[misc]
    fs_probe.is_of_one_host = lambda path: False
    if world.rank == 1:
        fs_probe.list_folder = LateListing(1.0)
        fs_probe.list_folder(root)
    world.barrier()
    probe_file_systems(root, world, use_shared_fs=True)


@pytest.mark.ranks
def test_a_late_file_system_is_shared_too(tmp_path: Path) -> None:
    run_ranks(2, probe_late, tmp_path, 5.0, env_of_rank=two_nodes)
    outcomes = run_outcomes(2, probe_late, tmp_path, 0.3, env_of_rank=two_nodes)
    assert all("use_shared_fs: false" in (outcome.error or "") for outcome in outcomes)


@pytest.mark.ranks
def test_nothing_is_made_where_the_parent_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "missing" / "root"
    run_ranks(2, probe, [root, root], True, env_of_rank=two_nodes)
    assert list(tmp_path.iterdir()) == []


def test_one_node_is_not_asked(tmp_path: Path) -> None:
    probe_file_systems(tmp_path / "root", World(), use_shared_fs=True)
    assert list(tmp_path.iterdir()) == []
