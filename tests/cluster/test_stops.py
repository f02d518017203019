"""Protects that a stop reaches every rank, through every launcher, and a second one ends them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_host import Job
from tests.support.cluster_starts import deepy, folder_for_run, mpi_of

pytestmark = pytest.mark.cluster

# Stands for a training run: this is about the launchers, which do not know the difference.
RANK = """
import os, pathlib, signal, sys, time
from megatron.ranks import adopt_rank_variables
adopt_rank_variables()
here = pathlib.Path(os.environ["RANK"])
def asked(number, frame):
    here.write_text(signal.Signals(number).name)
    if "--deaf" not in sys.argv: sys.exit(0)
for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
    signal.signal(getattr(signal, name), asked)
here.write_text("runs")
time.sleep(1000)
"""


@pytest.fixture(params=["pdsh", "openmpi", "mpich", "slurm"])
def launcher(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def env(launcher: str, cluster: Cluster, request: pytest.FixtureRequest) -> dict[str, str]:
    if launcher == "slurm":
        return request.getfixturevalue("slurm").env
    return {} if launcher == "pdsh" else mpi_of(cluster, launcher)


def said_by_ranks(folder: Path) -> list[str]:
    paths = [folder / str(rank) for rank in range(4)]
    return [path.read_text() for path in paths if path.exists()]


def wait_until_ranks_say(folder: Path, what: str, job: Job, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while said_by_ranks(folder) != [what] * 4:
        assert job.process.poll() is None, job.said
        assert time.monotonic() < deadline, f"{said_by_ranks(folder)} {job.said}"
        time.sleep(0.05)


def started(cluster: Cluster, folder: Path, launcher: str, env: dict[str, str], *own: str) -> Job:
    (folder / "rank.py").write_text(RANK)
    options = ("--launcher", launcher, "--hostfile", "hosts")
    job = deepy(cluster, folder, *options, script="rank.py", own=own, env=env)
    wait_until_ranks_say(folder, "runs", job)
    return job


def test_one_asks_all_ranks(cluster: Cluster, launcher: str, env: dict[str, str]) -> None:
    """SIGTERM, as schedulers send it; the ranks save, end well, and so does the start."""
    folder = folder_for_run(cluster, f"asked-{launcher}")
    job = started(cluster, folder, launcher, env)
    os.kill(job.pid, signal.SIGTERM)
    done = job.wait(30)
    assert done.status == 0, done.all
    assert set(said_by_ranks(folder)) <= {"SIGTERM", "SIGUSR1"}
    assert len(said_by_ranks(folder)) == 4
    assert cluster.left_after(10) == {}


def test_a_second_one_ends_all(cluster: Cluster, launcher: str, env: dict[str, str]) -> None:
    """Ctrl-C twice, where the ranks do not listen."""
    folder = folder_for_run(cluster, f"deaf-{launcher}")
    job = started(cluster, folder, launcher, env, "--deaf")
    os.kill(job.pid, signal.SIGINT)
    wait_until = time.monotonic() + 20
    while "runs" in said_by_ranks(folder) and time.monotonic() < wait_until:
        time.sleep(0.05)
    os.kill(job.pid, signal.SIGINT)
    done = job.wait(60)
    assert done.status not in (0, -9), done.all
    assert cluster.left_after(10) == {}
