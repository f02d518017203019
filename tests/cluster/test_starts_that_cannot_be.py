"""Protects that a start over SSH which cannot become a run says so within seconds, with what to do."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_starts import deepy, folder_for_run
from tests.support.doors import ROOT

pytestmark = pytest.mark.cluster

# Listens at a port, and never says a word.
HOLD = """
import socket, time
held = socket.create_server(("", 0))
print(held.getsockname()[1], flush=True)
time.sleep(600)
"""


def test_a_port_that_is_taken(cluster: Cluster) -> None:
    holder = cluster.on(1, ["python3", "-c", HOLD])
    while not holder.said.strip():
        assert holder.process.poll() is None
        time.sleep(0.05)
    port = int(holder.said)
    folder = folder_for_run(cluster, "taken-port", master_port=port)
    done = deepy(cluster, folder, "--hostfile", "hosts").wait(20)
    assert done.status == 2
    assert f"node1: master_port: {port} cannot be used: Address already in use" in done.all
    assert "to do: set master_port to a free port, or leave it out and one is found" in done.all
    assert not (folder / "checkpoints").exists()


def test_another_version_on_one_host(cluster: Cluster) -> None:
    folder = folder_for_run(cluster, "another-version")
    other = Path(shutil.copytree(ROOT / "megatron", cluster.shared / "other" / "megatron"))
    (other / "ranks.py").write_text((other / "ranks.py").read_text() + "\n")
    cluster.mount(2, "--bind", other, ROOT / "megatron")
    try:
        done = deepy(cluster, folder, "--hostfile", "hosts").wait(20)
    finally:
        cluster.unmount(2, ROOT / "megatron")
    assert done.status == 2
    assert re.search(
        rf"node2: another version of this project in {re.escape(str(ROOT))}: \S+ \(hash \w+\) there, "
        r"\S+ \(hash \w+\) on node1 \(here\)",
        done.all,
    )
    assert f"rsync -a --delete {ROOT}/megatron {ROOT}/*.py node2:{ROOT}/" in done.all
