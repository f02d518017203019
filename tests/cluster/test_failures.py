"""Protects the end of a run in which something happens to one host: all end, soon, and the cause is said."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from megatron.checkpointing.folders import read_latest
from megatron.checkpointing.manifest import differences, read_manifest
from tests.support.cluster import Cluster
from tests.support.cluster_host import Job
from tests.support.cluster_runs import PATIENCE, ends, process_of_rank, torchrun
from tests.support.cluster_starts import deepy, folder_for_run, mpi_of
from tests.support.doors import ROOT
from tests.support.tiny import metrics

pytestmark = pytest.mark.cluster

# Seconds from the fault to the last process.
SOON, OF_A_LOST_HOST = 60.0, 90.0
TOO_LATE = -9
Start: TypeAlias = Callable[[Cluster, Path], dict[int, Job]]
# train.py with a fault: rank 3, which is on the second host, raises in the step after the file has come.
SCRIPT = f"""
import os, runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from megatron.training import loop

def step_of(engine, find=loop.step_of):
    step = find(engine)
    def step_or_fault(*arguments, **named):
        if os.environ["RANK"] == "3" and os.path.exists("fault"):
            raise OSError(5, "Input/output error", "data/tiny.bin")
        return step(*arguments, **named)
    return step_or_fault

loop.step_of = step_of
runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        statuses: of what was started, by host.
        said: by host.
        seconds: from the fault to the end of the last process of both hosts.
        left: processes that were there when the time was over.
    """

    statuses: dict[int, int]
    said: dict[int, str]
    seconds: float
    left: dict[int, str]


def prepare(cluster: Cluster, name: str) -> Path:
    """A folder for runs that save again and again and would never end."""
    folder = folder_for_run(
        cluster,
        name,
        train_iters=100_000,
        eval_interval=100_000,
        checkpoint_factor=3,
        keep_last_n_checkpoints=2,
    )
    (folder / "train.py").write_text(SCRIPT)
    return folder


def by_torchrun(cluster: Cluster, folder: Path) -> dict[int, Job]:
    return torchrun(cluster, "--config-file", "run.yml", cwd=folder, script=folder / "train.py")


def by_pdsh(cluster: Cluster, folder: Path) -> dict[int, Job]:
    return {1: deepy(cluster, folder, "--hostfile", "hosts")}


def by_mpirun(cluster: Cluster, folder: Path) -> dict[int, Job]:
    options = ("--launcher", "openmpi", "--hostfile", "hosts")
    return {1: deepy(cluster, folder, *options, env=mpi_of(cluster, "openmpi"))}


def steps(folder: Path) -> int:
    """The last step of the run."""
    rows = (
        metrics(folder / "checkpoints") if (folder / "checkpoints/metrics.jsonl").exists() else []
    )
    return int(rows[-1]["iteration"]) if rows else 0


def train(cluster: Cluster, folder: Path, start: Start) -> dict[int, Job]:
    """Start a run and wait until it has trained a little."""
    (folder / "fault").unlink(missing_ok=True)
    before = steps(folder)
    jobs = start(cluster, folder)
    wait_for_steps(folder, before + 4, jobs)
    return jobs


def wait_for_steps(folder: Path, number: int, jobs: Mapping[int, Job]) -> None:
    deadline = time.monotonic() + PATIENCE
    while steps(folder) < number:
        for job in jobs.values():
            assert job.process.poll() is None, job.said
            assert time.monotonic() < deadline, job.said
        time.sleep(0.05)


def of_the_run(cluster: Cluster) -> dict[int, str]:
    """What runs on the hosts, but for ssh servers that wait for clients that they cannot reach."""
    return {
        pid: words for pid, words in cluster.processes().items() if not words.startswith("sshd: ")
    }


def end_of(cluster: Cluster, jobs: Mapping[int, Job], seconds: float) -> End:
    """How it ends after a fault that has just happened."""
    begin = time.monotonic()
    done = ends(jobs, seconds)
    while (left := of_the_run(cluster)) and time.monotonic() < begin + seconds:
        time.sleep(0.1)
    end = End(
        {host: end.status for host, end in done.items()},
        {host: end.out for host, end in done.items()},
        time.monotonic() - begin,
        left,
    )
    print(f"{end.seconds:.1f} s, {end.statuses}", *end.said.values(), sep="\n")
    return end


def check_latest(folder: Path) -> int:
    """The step of the checkpoint that ``latest`` names; it is whole."""
    name = read_latest(folder / "checkpoints")
    assert name is not None
    saved = folder / "checkpoints" / name
    manifest = read_manifest(saved)
    assert manifest is not None
    assert differences(saved, manifest.files_of(0)) == []
    return manifest.step


def check_saved(folder: Path, end: End) -> None:
    """Everything has ended, and the last step is saved."""
    assert end.left == {}
    assert check_latest(folder) == steps(folder)


STARTS = {"torchrun": by_torchrun, "pdsh": by_pdsh}


@pytest.fixture(scope="module")
def folder(bench: Cluster) -> Path:
    """One run, which each test takes up where the last one has left it."""
    return prepare(bench, "failures")


def check_failed(folder: Path, end: End) -> None:
    """Everything has ended, with the status of a failure, and the checkpoint can be used."""
    assert end.left == {}
    for status in end.statuses.values():
        assert status not in (0, TOO_LATE)
    check_latest(folder)


@pytest.mark.parametrize("how", STARTS)
def test_a_rank_raises(cluster: Cluster, folder: Path, how: str) -> None:
    jobs = train(cluster, folder, STARTS[how])
    (folder / "fault").touch()
    end = end_of(cluster, jobs, SOON)
    check_failed(folder, end)
    for said in end.said.values():
        assert "Input/output error: 'data/tiny.bin'" in said
    assert "rank 3 on node2: OSError: [Errno 5] Input/output error" in end.said[1]


@pytest.mark.parametrize("how", STARTS)
def test_a_rank_is_killed(cluster: Cluster, folder: Path, how: str) -> None:
    jobs = train(cluster, folder, STARTS[how])
    os.kill(process_of_rank(cluster, 3), signal.SIGKILL)
    end = end_of(cluster, jobs, SOON)
    check_failed(folder, end)
    assert "rank 3 on node2: ended without a word: killed?" in end.said[1]


def test_a_host_lacks_a_file(cluster: Cluster) -> None:
    """Before all have met: torchrun alone would let the first host wait for ranks that never come."""
    name = "lacks"
    folder = folder_for_run(cluster, name)
    there = cluster.hosts[1].path(cluster.private / name)
    there.mkdir()
    shutil.copy(folder / "run.yml", there)
    jobs = torchrun(cluster, "--config-file", cluster.private / name / "run.yml", cwd=folder)
    end = end_of(cluster, jobs, SOON)
    assert end.left == {}
    assert not {0, TOO_LATE} & set(end.statuses.values())
    lacks = f"{cluster.private}/lacks/run.yml: no such configuration file"
    assert re.search(f"rank [23] on node2 cannot come: {lacks}", end.said[1]), end.said[1]
    assert f"error: {lacks}" in end.said[2]


def test_a_host_loses_its_network(cluster: Cluster, folder: Path) -> None:
    """Both ways to start at once: what takes time is the half minute in which the host may come back."""
    folders = {"pdsh": folder, "torchrun": prepare(cluster, "lost")}
    jobs = {how: STARTS[how](cluster, place) for how, place in folders.items()}
    for how, place in folders.items():
        wait_for_steps(place, steps(place) + 4, jobs[how])
    cluster.link_down(2)
    try:
        done = [end_of(cluster, jobs[how], OF_A_LOST_HOST) for how in folders]
    finally:
        cluster.link_up(2)
    for place, end in zip(folders.values(), done, strict=True):
        check_failed(place, end)
        assert "on node2: no answer for 30 s: its host or the network to it is lost" in end.said[1]
    assert "rank 0 on node1: no answer for 30 s" in done[1].said[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_to_the_start(cluster: Cluster, folder: Path, number: signal.Signals) -> None:
    jobs = train(cluster, folder, by_pdsh)
    os.killpg(jobs[1].pid, number)  # as a terminal does it
    end = end_of(cluster, jobs, SOON)
    check_saved(folder, end)
    assert end.statuses == {1: 0}
    # Whichever rank the signal reached first has ended the step for all.
    by = f"stopped by ({number.name}|a signal to another rank)"
    assert re.search(f"{by} after step {steps(folder)} of", end.said[1]), end.said


def test_a_signal_while_the_agents_load(cluster: Cluster) -> None:
    folder = prepare(cluster, "early")
    jobs = by_pdsh(cluster, folder)
    deadline = time.monotonic() + SOON
    while not any("megatron.launch.agent" in words for words in cluster.processes(2).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(jobs[1].pid, signal.SIGINT)
    end = end_of(cluster, jobs, SOON)
    assert end.statuses == {1: 130}
    assert end.left == {}
    assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize(
    ("start", "program"), [(by_pdsh, "deepy.py"), (by_pdsh, "pdsh"), (by_mpirun, "deepy.py")]
)
def test_the_start_is_killed(cluster: Cluster, folder: Path, start: Start, program: str) -> None:
    jobs = train(cluster, folder, start)
    (pid,) = [
        pid
        for pid, words in cluster.processes(1).items()
        if program in [Path(word).name for word in words.split()[:2]]
    ]
    os.kill(pid, signal.SIGKILL)
    check_saved(folder, end_of(cluster, jobs, SOON))
