"""Protects how hosts share data: one builder of the index per disk, and no run on data that differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_host import Job
from tests.support.cluster_runs import (
    fail,
    folder_with_tokens,
    succeed,
    torchrun,
    write_config,
)
from tests.support.tiny import write_tokens
from tests.support.watching import again_and_again

pytestmark = pytest.mark.cluster

STORE = Path("data/index_store")


@contextmanager
def builders_seen(*stores: Path) -> Iterator[list[set[str]]]:
    """The names of the folders that builders work in, in each store, while the block runs."""
    seen: list[set[str]] = [set() for _ in stores]

    def look() -> None:
        for store, names in zip(stores, seen, strict=True):
            if store.is_dir():
                names |= {path.name for path in store.iterdir() if ".build-" in path.name}

    with again_and_again(look, 0.002):
        yield seen


def manifests(store: Path) -> dict[str, object]:
    """What has been published, by key: the arrays with their checksums."""
    return {
        path.parent.name: json.loads(path.read_text())["arrays"]
        for path in store.glob("*/manifest.json")
    }


def private_folders(cluster: Cluster, name: str) -> dict[int, Path]:
    """A new folder on each host's own disk, with the same ``data/tiny``; as seen from here."""
    folders = {n: host.path(cluster.private / name) for n, host in cluster.hosts.items()}
    for folder in folders.values():
        write_tokens(folder / "data" / "tiny")
    return folders


def start_privately(cluster: Cluster, name: str, **changes: object) -> dict[int, Job]:
    """Start a run in the hosts' own folders that saves where both see it."""
    config = write_config(
        cluster.shared / name / "run.yml",
        save=str(cluster.shared / name / "checkpoints"),
        load=None,
        **changes,
    )
    return torchrun(cluster, "--config-file", config, cwd=cluster.private / name)


def run(cluster: Cluster, name: str, **changes: object) -> dict[int, str]:
    """Such a run, which is to fail within a minute; what each host said."""
    said = fail(start_privately(cluster, name, **changes), timeout=60)
    assert cluster.left_after(10) == {}
    return said


def test_one_builder_on_a_shared_disk(cluster: Cluster) -> None:
    folder = folder_with_tokens(cluster, "shared-disk")
    write_config(folder / "run.yml", use_shared_fs=True)
    with builders_seen(folder / STORE) as (names,):
        succeed(torchrun(cluster, "--config-file", "run.yml", cwd=folder))
    assert len(names) == 1
    assert len(manifests(folder / STORE)) == 3  # training, validation, test


def test_one_builder_on_each_private_disk(cluster: Cluster) -> None:
    folders = private_folders(cluster, "private-disks")
    stores = [folder / STORE for folder in folders.values()]
    with builders_seen(*stores) as seen:
        succeed(start_privately(cluster, "private-disks", use_shared_fs=False))
    assert [len(names) for names in seen] == [1, 1]
    first, second = map(manifests, stores)
    assert len(first) == 3
    assert first == second


def test_private_disks_that_are_taken_for_a_shared_one(cluster: Cluster) -> None:
    private_folders(cluster, "taken-for-shared")
    said = run(cluster, "taken-for-shared", use_shared_fs=True)
    together = "\n".join(said.values())
    assert f"{cluster.private}/taken-for-shared/{STORE}" in together
    assert "node 1 (node2) cannot see a file that node 0 (node1) has written there" in together
    assert "set use_shared_fs: false" in together


def test_data_missing_on_one_host(cluster: Cluster) -> None:
    folders = private_folders(cluster, "missing")
    shutil.rmtree(folders[2] / "data")
    said = "\n".join(run(cluster, "missing", use_shared_fs=False).values())
    assert "data/tiny.idx: no such file, nor is data/tiny.bin" in said
    assert "node2" in said


def test_data_that_differs_by_a_byte(cluster: Cluster) -> None:
    folders = private_folders(cluster, "one-byte")
    with (folders[2] / "data" / "tiny.bin").open("r+b") as file:
        file.seek(1234)
        byte = file.read(1)[0]
        file.seek(1234)
        file.write(bytes([byte ^ 1]))
    said = "\n".join(run(cluster, "one-byte", use_shared_fs=False).values())
    assert "data/tiny" in said
    assert "node1" in said
    assert "node2" in said
    assert "differ" in said
