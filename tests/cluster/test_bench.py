"""Protects that the bench is what the other tests take it for: two hosts that share only what they should."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

pytestmark = pytest.mark.cluster


def test_each_host_is_its_own(cluster: Cluster) -> None:
    for number, other in ((1, 2), (2, 1)):
        assert cluster.run(number, ["hostname"]).out == f"node{number}\n"
        asked = cluster.run(number, ["ssh", f"node{other}", "hostname; hostname -I"]).out
        assert asked.split() == [f"node{other}", f"10.77.0.{other}"]
        for place in (cluster.private, "/tmp", "/dev/shm"):
            assert cluster.run(number, ["touch", f"{place}/of{number}"]).status == 0
    (cluster.shared / "seen").write_text("by both")
    for number, other in ((1, 2), (2, 1)):
        for place in (cluster.private, "/tmp", "/dev/shm"):
            names = cluster.run(number, ["ls", place]).out.split()
            assert f"of{number}" in names
            assert f"of{other}" not in names
        assert cluster.run(number, ["cat", "seen"]).out == "by both"
    assert not Path("/dev/shm/of1").exists()


def test_processes_are_seen_and_ended(cluster: Cluster) -> None:
    job = cluster.on(1, ["ssh", "node2", "sleep 1000"])
    deadline = time.monotonic() + 10
    while not any("sleep" in words for words in cluster.processes(2).values()):
        assert time.monotonic() < deadline, cluster.processes()
        time.sleep(0.05)
    assert job.pid in cluster.processes(1)
    assert job.pid not in cluster.processes(2)
    cluster.kill_processes()
    assert cluster.processes() == {}


def test_a_cable_can_be_pulled(cluster: Cluster) -> None:
    ask = ["ssh", "-o", "ConnectTimeout=2", "node2", "true"]
    cluster.link_down(2)
    try:
        assert cluster.run(1, ask).status == 255
    finally:
        cluster.link_up(2)
    assert cluster.run(1, ask).status == 0


def test_a_killed_bench_is_removed_by_the_next(cluster: Cluster) -> None:
    program = (
        "import os, signal; from tests.support.cluster import Cluster\n"
        "bench = Cluster().__enter__(); bench.on(2, ['sleep', '1000']); print(bench.base, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir(), killed.stderr
    with Cluster() as other:
        assert not left.exists()
        assert other.run(1, ["ssh", "node2", "hostname"]).out == "node2\n"
        base = other.base
    assert not base.exists()
    assert cluster.base.exists()
