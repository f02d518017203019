"""Protects that a run on two hosts is the run that it is on one, however it was started."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cluster import MPI_PACKAGES, MPICH_PACKAGES, Cluster, reason_not_to_run
from tests.support.cluster_runs import PATIENCE, TRAIN, succeed, torchrun
from tests.support.cluster_starts import deepy, folder_for_run, is_as_on_one_host, watched

RANKS = {"node1:0", "node1:1", "node2:2", "node2:3"}
# Open MPI's mpirun refuses to be started by root, whose the bench is.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
CONFIG = ("--config-file", "run.yml")


def test_pdsh(cluster: Cluster, one_host: Path) -> None:
    """The one start on two hosts that ``make test`` tries too: it says the most about ours."""
    folder = folder_for_run(cluster, "pdsh")
    with watched(cluster) as seen:
        done = deepy(cluster, folder, "--hostfile", "hosts").wait(PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert seen.told == RANKS
    assert seen.shown == set()
    assert seen.modes == {"node1": {"700 600"}, "node2": {"700 600"}}
    assert cluster.left_after(10) == {}
    for host in cluster.hosts.values():
        assert list(host.path("/tmp").glob("deepy*")) == []


@pytest.mark.cluster
def test_torchrun(cluster: Cluster, one_host: Path) -> None:
    folder = folder_for_run(cluster, "torchrun")
    succeed(torchrun(cluster, *CONFIG, cwd=folder))
    is_as_on_one_host(folder, one_host)
    assert cluster.left_after(10) == {}


def path_to(cluster: Cluster, program: str, packages: Mapping[str, str]) -> dict[str, str]:
    """A PATH in which ``mpirun`` is Debian's ``program``: several MPIs may be installed."""
    reason = reason_not_to_run(packages)
    if reason:
        pytest.skip(reason)
    folder = cluster.shared / program
    folder.mkdir(exist_ok=True)
    # No link: MPICH's looks for its other programs where it was called.
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec {shutil.which(program)} "$@"\n')
    (folder / "mpirun").chmod(0o755)
    return {"PATH": f"{folder}:{sys.prefix}/bin:/usr/bin:/bin"}


@pytest.fixture
def open_mpi(cluster: Cluster) -> dict[str, str]:
    return AS_ROOT | path_to(cluster, "mpirun.openmpi", MPI_PACKAGES)


def starts_through(launcher: str, cluster: Cluster, one_host: Path, env: dict[str, str]) -> None:
    folder = folder_for_run(cluster, launcher)
    with watched(cluster) as seen:
        options = ("--launcher", launcher, "--hostfile", "hosts")
        done = deepy(cluster, folder, *options, env=env).wait(PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert seen.told >= RANKS
    assert seen.shown == set()
    assert cluster.left_after(10) == {}


@pytest.mark.cluster
def test_open_mpi(cluster: Cluster, one_host: Path, open_mpi: dict[str, str]) -> None:
    starts_through("openmpi", cluster, one_host, open_mpi)


@pytest.mark.cluster
def test_mpich(cluster: Cluster, one_host: Path) -> None:
    starts_through("mpich", cluster, one_host, path_to(cluster, "mpirun.mpich", MPICH_PACKAGES))


@pytest.mark.cluster
def test_an_mpirun_of_ones_own(cluster: Cluster, one_host: Path, open_mpi: dict[str, str]) -> None:
    folder = folder_for_run(cluster, "mpirun")
    command = ["mpirun", "-n", "4", "--hostfile", "hosts", sys.executable, TRAIN, *CONFIG]
    done = cluster.run(1, command, cwd=folder, env=open_mpi, timeout=PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert cluster.left_after(10) == {}
