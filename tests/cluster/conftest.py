"""One bench of two hosts for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import SLURM_PACKAGES, Cluster, reason_not_to_run
from tests.support.cluster_runs import folder_with_tokens, write_config
from tests.support.cluster_slurm import Slurm
from tests.support.doors import doors


@pytest.fixture(scope="session")
def bench() -> Iterator[Cluster]:
    """Two hosts. Tests take :func:`cluster`, which finds and leaves them without processes."""
    reason = reason_not_to_run()
    if reason:
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(bench: Cluster) -> Iterator[Cluster]:
    """The two hosts, on which nothing runs yet; what a test has left running is killed after it."""
    yield bench
    bench.kill_processes()


@pytest.fixture(scope="session")
def one_host(bench: Cluster) -> Path:
    """The folder of the run that all others are compared with: four ranks on this machine itself."""
    folder = folder_with_tokens(bench, "one-host")
    write_config(folder / "run.yml")
    for done in doors(4, "train.py", "--config-file", "run.yml", folder=folder):
        assert done.status == 0, done.all
    return folder


@pytest.fixture(scope="session")
def services(bench: Cluster) -> Iterator[Slurm]:
    """Tests take :func:`slurm`."""
    reason = reason_not_to_run(SLURM_PACKAGES)
    if reason:
        pytest.skip(reason)
    with Slurm(bench) as slurm:
        yield slurm


@pytest.fixture
def slurm(cluster: Cluster, services: Slurm) -> Iterator[Slurm]:
    """A Slurm without jobs."""
    yield services
    services.cancel_all()
