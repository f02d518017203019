"""Protects checkpoints of two hosts: on a disk that both see, and on a disk in each of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_host import Job
from tests.support.cluster_runs import fail, folder_with_tokens, succeed, torchrun, write_config
from tests.support.doors import ROOT, doors
from tests.support.tiny import series, write_tokens
from tests.support.train_and_record import READS, samples_read

pytestmark = pytest.mark.cluster

RECORDER = ROOT / "tests" / "support" / "train_and_record.py"
SERIES = ("train/lm_loss", "train/learning_rate", "train/grad_norm")
STEPS, HALF, BATCH = 6, 3, 8
FIRST_HALF = ("--set", f"exit_interval={HALF}")
# A message before the first step, and the end of all ranks: within a minute.
SOON = 60.0


def start(
    cluster: Cluster,
    folder: Path,
    *options: str,
    hosts: tuple[int, ...] = (1, 2),
    ranks: int = 2,
    cwd: Path | None = None,
) -> dict[int, Job]:
    """Start the run of ``folder/run.yml``, which writes down in ``folder/reads`` what it reads."""
    return torchrun(
        cluster,
        *("--config-file", folder / "run.yml", *options),
        cwd=cwd or folder,
        hosts=hosts,
        ranks=ranks,
        script=RECORDER,
        env={READS: str(folder / "reads")},
    )


def train_here(folder: Path, ranks: int, *options: str) -> None:
    """Train on this machine itself, as one host that sees the shared disk."""
    argv = ("--config-file", "run.yml", *options)
    script, reads = str(RECORDER.relative_to(ROOT)), {READS: str(folder / "reads")}
    for done in doors(ranks, script, *argv, folder=folder, variables=reads):
        assert done.status == 0, done.all


@pytest.fixture(scope="module")
def whole(bench: Cluster) -> Path:
    """The folder of a run of four ranks on one host that nobody interrupts."""
    folder = folder_with_tokens(bench, "whole-run")
    write_config(folder / "run.yml", eval_iters=0)
    train_here(folder, 4)
    return folder


def check_order(folder: Path, whole: Path) -> None:
    """The run in ``folder`` has read each sample once, in the order of one that nobody interrupted."""
    found = samples_read(folder / "reads")
    assert list(found) == [BATCH * step for step in range(STEPS)]
    assert found == samples_read(whole / "reads")


def test_from_two_hosts_to_one(cluster: Cluster, whole: Path) -> None:
    folder = folder_with_tokens(cluster, "two-to-one")
    write_config(folder / "run.yml", eval_iters=0)
    succeed(start(cluster, folder, *FIRST_HALF))
    said = succeed(start(cluster, folder, hosts=(1,), ranks=4))
    assert f"global_step{HALF}: step {HALF}, {HALF * BATCH} samples consumed" in said
    check_order(folder, whole)
    for name in SERIES:
        assert series(folder / "checkpoints", name) == series(whole / "checkpoints", name), name


def test_from_one_host_to_two_with_more_ranks(cluster: Cluster, whole: Path) -> None:
    folder = folder_with_tokens(cluster, "one-to-two")
    write_config(folder / "run.yml", eval_iters=0)
    train_here(folder, 2, *FIRST_HALF)
    succeed(start(cluster, folder, "--set", "reshape_on_load=true"))
    check_order(folder, whole)
    for name in SERIES:
        expected = pytest.approx(series(whole / "checkpoints", name), rel=1e-5)
        assert series(folder / "checkpoints", name) == expected, name


def private_run(cluster: Cluster, name: str, **changes: object) -> tuple[Path, dict[int, Path]]:
    """A run whose data and checkpoints are on the hosts' own disks.

    Returns:
        The folder of ``run.yml``, which both hosts see; and each host's own folder, seen from here.
    """
    folders = own_folders(cluster, name)
    for folder in folders.values():
        write_tokens(folder / "data" / "tiny")
    settings = {"use_shared_fs": False, "checkpoint": {"use_node_local_storage": True}}
    write_config(cluster.shared / name / "run.yml", **({"eval_iters": 0} | settings | changes))
    return cluster.shared / name, folders


def own_folders(cluster: Cluster, name: str) -> dict[int, Path]:
    return {number: host.path(cluster.private / name) for number, host in cluster.hosts.items()}


@pytest.fixture(scope="module")
def saved(bench: Cluster) -> Path:
    """The folder of a run that has saved in the middle, on its hosts' own disks."""
    place, _ = private_run(bench, "own-disks")
    succeed(start(bench, place, *FIRST_HALF, cwd=bench.private / place.name))
    return place


def copy_of(cluster: Cluster, saved: Path, name: str) -> tuple[Path, dict[int, Path]]:
    """What :func:`private_run` gives, with the checkpoints of ``saved``."""
    sources = own_folders(cluster, saved.name)
    place, folders = private_run(cluster, name)
    for number, folder in folders.items():
        shutil.copytree(sources[number] / "checkpoints", folder / "checkpoints")
    return place, folders


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


STEP = f"global_step{HALF}"


def test_a_disk_in_each_host(cluster: Cluster, saved: Path, whole: Path) -> None:
    folders = own_folders(cluster, saved.name)
    disks = [files_in(folder / "checkpoints") for folder in folders.values()]
    manifests = [json.loads(files[f"{STEP}/manifest.json"]) for files in disks]
    assert manifests[0] == manifests[1]
    for files, listed in zip(disks, manifests[0]["disks"], strict=True):
        inside = {name.removeprefix(f"{STEP}/") for name in files if name.startswith(STEP)}
        assert inside == {*listed, "manifest.json"}
        assert files["latest"] == STEP.encode()
        assert not [name for name in files if name.startswith(".")]
    place, folders = copy_of(cluster, saved, "resumed")
    shutil.copytree(saved / "reads", place / "reads")
    shutil.copy(
        own_folders(cluster, saved.name)[1] / "checkpoints" / "metrics.jsonl",
        folders[1] / "checkpoints",
    )
    succeed(start(cluster, place, cwd=cluster.private / place.name))
    check_order(place, whole)
    for name in SERIES:
        found = series(folders[1] / "checkpoints", name)
        assert found == series(whole / "checkpoints", name), name


def refused(cluster: Cluster, jobs: Mapping[int, Job]) -> str:
    """What the hosts say of a run that must end by itself before its first step, on all of them."""
    said = fail(jobs, SOON)
    assert cluster.left_after(10) == {}
    together = "\n".join(said.values())
    assert "step 1/" not in together
    return together


def test_a_part_that_is_gone(cluster: Cluster, saved: Path) -> None:
    place, folders = copy_of(cluster, saved, "lost")
    for path in (folders[2] / "checkpoints" / STEP).glob("*optim*"):
        path.unlink()
    said = refused(cluster, start(cluster, place, ranks=1, cwd=cluster.private / "lost"))
    assert f"rank 1 on node2: the checkpoint {cluster.private}/lost/checkpoints/{STEP}" in said
    assert "zero_pp_rank_2_mp_rank_00_optim_states.pt is missing" in said
    assert "bring back this node's own part, that of node 1" in said


def test_hosts_in_another_order(cluster: Cluster, saved: Path) -> None:
    place, _ = copy_of(cluster, saved, "swapped")
    jobs = start(cluster, place, hosts=(2, 1), ranks=1, cwd=cluster.private / "swapped")
    said = refused(cluster, jobs)
    assert "rank 0 on node2: " in said
    assert "this is the part of node 1 of 2: start the nodes in the order of the save" in said


def test_nobody_says_at_load_that_disks_are_private(cluster: Cluster, saved: Path) -> None:
    place, _ = copy_of(cluster, saved, "not-said-at-load")
    write_config(place / "run.yml", use_shared_fs=False, save=str(cluster.shared / "elsewhere"))
    said = refused(cluster, start(cluster, place, ranks=1, cwd=cluster.private / place.name))
    assert f"rank 0 on node1: the checkpoint {cluster.private}/not-said-at-load" in said
    assert "set checkpoint: {use_node_local_storage: true}, as it was saved" in said


def test_nobody_says_at_the_start_that_disks_are_private(cluster: Cluster) -> None:
    place, folders = private_run(cluster, "not-said", checkpoint=None)
    said = refused(cluster, start(cluster, place, ranks=1, cwd=cluster.private / "not-said"))
    assert (
        f"save: {cluster.private}/not-said/checkpoints is not the same folder on all nodes" in said
    )
    assert "node 1 (node2) cannot see a file that node 0 (node1) has written there" in said
    assert "set checkpoint: {use_node_local_storage: true}" in said
    assert [path.name for path in (folders[1] / "checkpoints").iterdir()] == []


def test_a_shared_disk_that_is_taken_for_private_ones(cluster: Cluster) -> None:
    save = str(cluster.shared / "falsely-private" / "checkpoints")
    place, _ = private_run(cluster, "falsely-private", save=save, load=save)
    said = refused(cluster, start(cluster, place, ranks=1, cwd=cluster.private / place.name))
    assert f"save: {save} is one folder for several nodes" in said
    assert "node 0 (node1), node 1 (node2)" in said
    assert "set use_node_local_storage: false" in said


def test_a_folder_that_one_host_sees_read_only_stops_all_before_the_first_step(
    cluster: Cluster,
) -> None:
    """With ZeRO every rank writes: at the first save it would be hours of work."""
    folder = folder_with_tokens(cluster, "read-only-on-one")
    saves = folder / "checkpoints"
    saves.mkdir()
    write_config(folder / "run.yml", eval_iters=0)
    cluster.mount(2, "--bind", "-o", "ro", saves, saves)
    try:
        said = fail(start(cluster, folder), SOON)
    finally:
        cluster.unmount(2, saves)
    for text in said.values():
        assert f"save: no checkpoint can be written under {saves}" in text
    assert f"rank 2 on node2: Read-only file system: {saves}" in said[1]
    assert "index" not in said[1]
    assert list(saves.iterdir()) == []
    assert samples_read(folder / "reads") == {}
