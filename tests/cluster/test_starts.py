"""Protects that a run on two hosts is the run that it is on one, however it was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_runs import PATIENCE, TRAIN, succeed, torchrun
from tests.support.cluster_starts import deepy, folder_for_run, is_as_on_one_host, mpi_of, watched

RANKS = {"node1:0", "node1:1", "node2:2", "node2:3"}
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


@pytest.mark.cluster
def test_hosts_that_take_their_own_names_for_themselves(cluster: Cluster, one_host: Path) -> None:
    """As Debian's installer leaves /etc/hosts: the ranks talk through the interface at which they met."""
    folder = folder_for_run(cluster, "named")
    for number, host in cluster.hosts.items():
        lines = [f"127.0.1.1 {host.name}"]
        lines += [
            f"{each.address} {each.name}" for each in cluster.hosts.values() if each is not host
        ]
        (folder / f"hosts-{number}").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        cluster.mount(number, "--bind", folder / f"hosts-{number}", "/etc/hosts")
    try:
        succeed(torchrun(cluster, *CONFIG, cwd=folder))
    finally:
        for number in cluster.hosts:
            cluster.unmount(number, "/etc/hosts")
    is_as_on_one_host(folder, one_host)
    assert cluster.left_after(10) == {}


@pytest.mark.cluster
@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_launchers_of_mpi(cluster: Cluster, one_host: Path, launcher: str) -> None:
    folder = folder_for_run(cluster, launcher)
    with watched(cluster) as seen:
        options = ("--launcher", launcher, "--hostfile", "hosts")
        done = deepy(cluster, folder, *options, env=mpi_of(cluster, launcher)).wait(PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert seen.told >= RANKS
    assert seen.shown == set()
    assert cluster.left_after(10) == {}


@pytest.mark.cluster
def test_an_mpirun_of_ones_own(cluster: Cluster, one_host: Path) -> None:
    folder = folder_for_run(cluster, "mpirun")
    command = ["mpirun", "-n", "4", "--hostfile", "hosts", sys.executable, TRAIN, *CONFIG]
    done = cluster.run(1, command, cwd=folder, env=mpi_of(cluster, "openmpi"), timeout=PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert cluster.left_after(10) == {}
