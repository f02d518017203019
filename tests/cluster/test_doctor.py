"""Protects that one run of the doctor finds what is wrong with a cluster: each fault is made for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import MPI_PACKAGES, Cluster, reason_not_to_run
from tests.support.cluster_host import INTERFACE
from tests.support.cluster_runs import succeed, torchrun, write_config
from tests.support.doors import ROOT
from tests.support.tiny import write_tokens

CONFIG = "run.yml"
pytestmark = pytest.mark.cluster

AS_ROOT = ("--set", "launcher_args=--allow-run-as-root")


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
    found: dict[str, Any]
    found = json.JSONDecoder().raw_decode(done.out[start:])[0]
    found["said"] = done.all
    found["findings_text"] = "\n".join(each["text"] for each in found["findings"])
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
    # Where the machine of the tests is slow or busy, or has few cores, that may be said.
    doubts = {f["topic"] for f in found["findings"] if f["level"] == "warning"}
    assert doubts <= {"limits", "disks", "network"}
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


def test_copies_on_disks_of_their_own_are_identical(cluster: Cluster, folder: Path) -> None:
    copy = cluster.base / "identical"
    shutil.copytree(folder / "data", copy, dirs_exist_ok=True)
    with mounted(cluster, "--bind", copy, folder / "data"):
        found = doctor(cluster, folder)
    assert "not one folder: node1 and node2 did not see a file" in bad(found, "sharing")
    assert bad(found, "data") == ""
    assert "identical copies on node1 and node2" in found["findings_text"]
    assert found["verdict"]["data"] == "ok"


def test_a_host_without_the_data_is_not_one_that_stopped(cluster: Cluster, folder: Path) -> None:
    with mounted(cluster, "-t", "tmpfs", "tmpfs", folder / "data"):
        found = doctor(cluster, folder)
    assert "No such file or directory" in bad(found, "data")
    assert "stopped answering" not in found["findings_text"]
    assert "ended with status" not in found["said"]


def test_a_reader_that_has_seen_enough_is_no_failure(cluster: Cluster, folder: Path) -> None:
    command = f"{sys.executable} {ROOT / 'deepy.py'} doctor {CONFIG} | head -n 1"
    done = cluster.run(1, ["bash", "-c", command], cwd=folder, timeout=60.0)
    assert done.out.splitlines() == ["doctor: 2 host(s), run.yml"]
    assert cluster.left_after(5) == {}


def test_a_stop_ends_it_within_seconds(cluster: Cluster, folder: Path) -> None:
    command = [sys.executable, ROOT / "deepy.py", "doctor", CONFIG]
    job = cluster.on(1, command, cwd=folder)
    deadline = time.monotonic() + 60
    while sum("doctor.probe" in line for line in cluster.processes().values()) < 2:
        assert job.process.poll() is None, job.said
        assert time.monotonic() < deadline, job.said
        time.sleep(0.05)
    time.sleep(1.0)
    stopped = time.monotonic()
    os.kill(job.pid, signal.SIGINT)
    done = job.wait(60)
    assert time.monotonic() - stopped < 12, done.all
    assert done.status == 130, done.all
    assert "Traceback" not in done.all
    assert cluster.left_after(3) == {}


def test_a_folder_for_checkpoints_that_is_read_only(cluster: Cluster, folder: Path) -> None:
    save = folder / "checkpoints"
    save.mkdir(exist_ok=True)
    with mounted(cluster, "--bind", "-o", "ro", save, save):
        found = doctor(cluster, folder)
    assert bad(found, "folders").startswith(
        f"error: node2: save {save}: cannot be written: Read-only"
    )


def test_a_clock_ten_minutes_off(cluster: Cluster, folder: Path) -> None:
    libraries = list(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        pytest.skip("missing here: apt-get install faketime")
    # What starts Python on the second host is another program there.
    real = Path(sys.executable).resolve()
    copy, shim = cluster.base / "python-copy", cluster.base / "python-later"
    shutil.copy(real, copy)
    variables = f"LD_PRELOAD={libraries[0]} FAKETIME=+600s FAKETIME_DONT_FAKE_MONOTONIC=1"
    # Under this library Python's sleep fails; the probe sleeps only while the first host's is not up.
    later = 'case "$*" in *doctor.probe*) sleep 3;; esac'
    # The name that it was started by tells Python where its packages are.
    shim.write_text(f'#!/bin/bash\n{later}\nexport {variables}\nexec -a "$0" {copy} "$@"\n')
    shim.chmod(0o755)
    with mounted(cluster, "--bind", shim, real):
        found = doctor(cluster, folder)
    assert "error: node2: its clock is 10m00s ahead of that of node1" in bad(found, "hosts")


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


def test_closed_ports(cluster: Cluster, folder: Path) -> None:
    """A firewall that leaves open what is below 32768, as a rule of the first host's routing."""
    high = "32768-65534"
    rule = ["ipproto", "tcp", "sport", high, "dport", high, "blackhole"]
    first = cluster.hosts[1]
    first.command("ip", "rule", "add", *rule)
    try:
        found = doctor(cluster, folder)
    finally:
        first.command("ip", "rule", "del", *rule)
    ports = bad(found, "ports")
    assert "error: node2 cannot reach node1 at a port that the system chose: no answer" in ports
    assert found["seconds"] < 60


def test_no_way_to_the_first_host(cluster: Cluster, folder: Path) -> None:
    """The port at which all meet is closed: the page is there, and the other host says why it is not."""
    first = cluster.hosts[1]
    rule = ["ipproto", "tcp", "sport", "29777", "blackhole"]
    first.command("ip", "rule", "add", *rule)
    try:
        found = doctor(cluster, folder, "--set", "master_port=29777")
    finally:
        first.command("ip", "rule", "del", *rule)
    assert found["hosts"] == ["node1"]
    assert "error: node2 (node 1): its probe did not reach node 0 within 15 s" in bad(
        found, "hosts"
    )
    assert "host node2 (node 1) cannot reach node 0 at node1:29777: timed out" in found["said"]


def test_a_slow_network(cluster: Cluster, folder: Path) -> None:
    second = cluster.hosts[2]
    rule = ["rate", "100mbit", "burst", "32kb", "latency", "50ms"]
    second.command("tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", *rule)
    try:
        found = doctor(cluster, folder)
    finally:
        second.command("tc", "qdisc", "del", "dev", INTERFACE, "root")
    assert "less than 1 Gbit/s" in bad(found, "network")
    assert found["facts"]["links"][0]["down"] * 8 < 150e6
    assert found["verdict"]["speed"] == "warning"


# Stands before the system's read calls in every process: a disk of about 20 MB a second.
SLOW_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/uio.h>
#include <time.h>
ssize_t preadv64v2(int fd, const struct iovec *to, int count, off64_t first, int flags) {
  ssize_t (*next)(int, const struct iovec *, int, off64_t, int) = dlsym(RTLD_NEXT, "preadv64v2");
  ssize_t size = next(fd, to, count, first, flags);
  if (size > 0) {
    struct timespec pause = {size / 20000000, size % 20000000 * 50};
    nanosleep(&pause, 0);
  }
  return size;
}
ssize_t preadv64(int fd, const struct iovec *to, int count, off64_t first) {
  return preadv64v2(fd, to, count, first, 0);
}
"""


def test_a_slow_disk(cluster: Cluster, folder: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("missing here: apt-get install gcc")
    source, library = cluster.base / "slow.c", cluster.base / "slow.so"
    source.write_text(SLOW_READS)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    write_tokens(folder / "large" / "tiny", documents=400, length=100_000)
    config = ["--set", f"data_path={folder / 'large' / 'tiny'}", "--set", "launch_env=[LD_PRELOAD]"]
    found = doctor(cluster, folder, *config, env={"LD_PRELOAD": str(library)})
    disks = bad(found, "disks")
    assert "node2: reads" in disks
    assert "less than 95.4 MiB/s" in disks
    assert found["verdict"]["speed"] == "warning"


def test_torchrun_starts_probes_too(cluster: Cluster, folder: Path) -> None:
    """Two a host, of which one works, where torchrun's agent holds the port at which ranks meet."""
    probe = ROOT / "megatron" / "doctor" / "probe.py"
    said = succeed(
        torchrun(cluster, CONFIG, cwd=folder, script=probe, env={"PYTHONPATH": str(ROOT)})
    )
    assert "doctor: 2 host(s), run.yml" in said
    assert "0 errors" in said
    assert "; a run can start" in said


def test_mpirun_starts_probes_too(cluster: Cluster, folder: Path) -> None:
    reason = reason_not_to_run(MPI_PACKAGES)
    if reason:
        pytest.skip(reason)
    found = doctor(cluster, folder, "--set", "launcher=openmpi", *AS_ROOT)
    assert found["hosts"] == ["node1", "node2"]
    assert found["status"] == 0
