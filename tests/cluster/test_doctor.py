"""Protects that one run of the doctor finds what is wrong with a cluster: each fault is made for real."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_host import INTERFACE
from tests.support.cluster_runs import write_config
from tests.support.doors import ROOT
from tests.support.tiny import write_tokens

CONFIG = "run.yml"


@pytest.fixture
def folder(cluster: Cluster) -> Path:
    """A folder that both hosts see, with a configuration of a run over pdsh."""
    folder = cluster.shared / "doctor"
    if not folder.exists():
        write_tokens(folder / "data" / "tiny")
        (folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    write_config(folder / CONFIG, hostfile=str(folder / "hosts"), num_workers=1)
    return folder


def doctor(
    cluster: Cluster, folder: Path, *argv: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What ``deepy.py doctor --json`` on the first host finds, in less than a minute."""
    command = [sys.executable, ROOT / "deepy.py", "doctor", "--json", CONFIG, *argv]
    done = cluster.run(1, command, cwd=folder, env=env, timeout=60.0)
    start = done.out.find("{\n")
    assert start >= 0, done.out
    found: dict[str, Any] = json.JSONDecoder().raw_decode(done.out[start:])[0]
    assert done.status == found["status"], done.out
    assert cluster.left_after(5) == {}
    return found


def bad(found: dict[str, Any], topic: str) -> str:
    """The texts of the topic's warnings and errors."""
    lines = [f for f in found["findings"] if f["topic"] == topic and f["level"] != "ok"]
    return "\n".join(f"{f['level']}: {f['text']}" for f in lines)


def test_two_hosts_in_order(cluster: Cluster, folder: Path) -> None:
    found = doctor(cluster, folder)
    assert found["hosts"] == ["node1", "node2"]
    wrong = [f for f in found["findings"] if f["level"] == "error"]
    assert wrong == []
    assert found["verdict"]["data"] == "ok"
    assert found["status"] == 0
    assert found["seconds"] < 30
    # Where a disk is slow or cores are few on the machine of the tests, that may be said.
    doubts = {f["topic"] for f in found["findings"] if f["level"] == "warning"}
    assert doubts <= {"limits", "disks"}
    assert {f["topic"] for f in found["findings"]} >= {"sharing", "ports", "network", "devices"}
    assert found["facts"]["links"][0]["up"] > 0


@contextmanager
def mounted(cluster: Cluster, *arguments: str | Path) -> Iterator[None]:
    """On the second host alone."""
    cluster.mount(2, *arguments)
    try:
        yield
    finally:
        cluster.unmount(2, arguments[-1])


def test_one_byte_of_the_data_differs(cluster: Cluster, folder: Path) -> None:
    copy = cluster.base / "stale"
    shutil.copytree(folder / "data", copy, dirs_exist_ok=True)
    content = bytearray((copy / "tiny.bin").read_bytes())
    content[1000] ^= 1
    (copy / "tiny.bin").write_bytes(content)
    with mounted(cluster, "--bind", copy, folder / "data"):
        found = doctor(cluster, folder, "--set", "use_shared_fs=false")
    assert "tiny.bin: other content between bytes 0 and" in bad(found, "data")
    assert "on node2" in bad(found, "data")
    assert found["verdict"]["data"] == "error"


def test_a_folder_for_checkpoints_that_is_read_only(cluster: Cluster, folder: Path) -> None:
    save = folder / "checkpoints"
    save.mkdir(exist_ok=True)
    with mounted(cluster, "--bind", "-o", "ro", save, save):
        found = doctor(cluster, folder)
    assert bad(found, "folders").startswith(
        f"error: node2: save {save}: cannot be written: Read-only"
    )


def test_a_clock_ten_minutes_off(cluster: Cluster, folder: Path) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("missing here: apt-get install faketime")
    # What starts Python on the second host is another program there.
    shim = cluster.base / "python-later"
    real = Path(sys.executable).resolve()
    mine = cluster.base / "python-real"
    shutil.copy(real, mine)
    shim.write_text(f'#!/bin/sh\nexec faketime -f +10m {mine} "$@"\n')
    shim.chmod(0o755)
    with mounted(cluster, "--bind", shim, real):
        found = doctor(cluster, folder)
    assert "error: node2: its clock is 10m" in bad(found, "hosts")


def test_another_version_of_this_project(cluster: Cluster, folder: Path) -> None:
    place = ROOT / "megatron" / "errors.py"
    other = cluster.base / "errors.py"
    other.write_text(place.read_text() + "# another version\n")
    with mounted(cluster, "--bind", other, place):
        found = doctor(cluster, folder)
    assert "error: another version of this project" in bad(found, "versions")


def test_little_shared_memory(cluster: Cluster, folder: Path) -> None:
    with mounted(cluster, "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"):
        found = doctor(cluster, folder)
    assert "node2: /dev/shm has 64.0 MiB" in bad(found, "limits")


@contextmanager
def traffic(cluster: Cluster, *rule: str) -> Iterator[None]:
    """``tc`` on the second host: a queue at its end of the cable."""
    second = cluster.hosts[2]
    second.command("tc", "qdisc", "add", "dev", INTERFACE, *rule)
    try:
        yield
    finally:
        second.command("tc", "qdisc", "del", "dev", INTERFACE, rule[0])


@contextmanager
def port_closed(cluster: Cluster, low: int, high: int) -> Iterator[None]:
    """The second host drops what asks for a TCP connection (SYN without ACK) to these ports.

    ``high - low`` is a power of two. The rule is tc's: it needs no firewall in the kernel.
    """
    second = cluster.hosts[2]
    mask = f"0x{0xFFFF & ~(high - low - 1):x}"
    words = f"match ip protocol 6 0xff match ip dport {low} {mask} match u8 0x02 0x12 at 33"
    with traffic(cluster, "ingress"):
        second.command(
            *f"tc filter add dev {INTERFACE} parent ffff: protocol ip u32 {words}".split(),
            *("action", "drop"),
        )
        yield


def test_closed_ports(cluster: Cluster, folder: Path) -> None:
    with port_closed(cluster, 32768, 65536):
        found = doctor(cluster, folder)
    assert "error: node1 cannot reach node2 at a port that the system chose: no answer" in bad(
        found, "ports"
    )


def test_a_slow_network(cluster: Cluster, folder: Path) -> None:
    with traffic(cluster, "root", "netem", "rate", "100mbit", "delay", "20ms"):
        found = doctor(cluster, folder)
    network = bad(found, "network")
    assert "less than 1 Gbit/s" in network
    assert "ms there and back" in network
    assert found["verdict"]["speed"] == "warning"
