"""One bench of two hosts for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, reason_not_to_run


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
