"""One host of the bench: network, mounts, host name and ssh server of its own, on this machine.

A host is what its ssh server holds open, nothing has a name in the system: when the last of its
processes is gone, its network and its disks are gone too.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.doors import ROOT, Done, is_running

MARKER: Final = "NEOX_BENCH"  # environment variable of all that a bench starts: its folder
NETWORK: Final = "10.77.0"
INTERFACE: Final = "eth0"
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# Of each host's own and empty at first: what a login there finds at home is nobody's business here.
_OWN: Final = ("/tmp", str(Path.home()))

# Runs in the new namespaces. What is needed on a host and lies in a folder that is hidden is put back.
_SET_UP: Final = """
set -e
hostname {name}
ip link set lo up
mount -t sysfs sysfs /sys
mount --bind {base}/hosts /etc/hosts
mount -t tmpfs tmpfs {private}
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
kept=$(mktemp -d {base}/kept.XXXX)
number=0
for folder in {folders}; do
  number=$((number + 1)); mkdir $kept/$number; mount --bind "$folder" $kept/$number
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=700 tmpfs ~
install -D -m 600 {base}/ssh/config ~/.ssh/config
number=0
for folder in {folders}; do
  number=$((number + 1)); mkdir -p "$folder"; mount --move $kept/$number "$folder"
done
cd {base}
touch {name}.ready
until ip -4 addr show dev {interface} 2>/dev/null | grep -q {address}; do sleep 0.02; done
exec /usr/sbin/sshd -D -e -f {base}/ssh/{name}.conf
"""


class Job:
    """A program that was started on a host. It speaks into a file, so that nobody waits for its children."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self._said = process, said

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """Standard output and standard error, as far as they have got."""
        return self._said.read_text(errors="replace")

    def wait(self, timeout: float) -> Done:
        """How it ended. It is killed when it takes longer than ``timeout`` seconds: status -9."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return Done(self.process.returncode, self.said, "")


class Host:
    """A host while its ssh server runs. See :class:`tests.support.cluster.Cluster` for the whole bench.

    Attributes:
        number: from 1 on.
        name, address: as the hosts know it.
    """

    def __init__(self, number: int, base: Path) -> None:
        self.number, self._base = number, base
        self.name, self.address = f"node{number}", f"{NETWORK}.{number}"
        self._jobs = 0
        script = _SET_UP.format(
            name=self.name,
            address=self.address,
            base=base,
            private=base / "private",
            interface=INTERFACE,
            folders=" ".join(map(shlex.quote, _needed(base))),
        )
        apart = ["unshare", "--net", "--mount", "--uts", "--propagation", "private"]
        with (base / f"{self.name}.log").open("wb") as log:
            self.server = subprocess.Popen(
                [*apart, "bash", "-c", script],
                env=_plain_environment(base),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.daemons = {self.server.pid}

    def wait_until(self, what: Callable[[], bool], timeout: float = 20.0) -> None:
        """Wait for a step of the set-up."""
        deadline = time.monotonic() + timeout
        while not what():
            said = (self._base / f"{self.name}.log").read_text()
            assert self.server.poll() is None, f"{self.name} could not be set up: {said}"
            assert time.monotonic() < deadline, f"{self.name} is not set up in time: {said}"
            time.sleep(0.02)

    @property
    def is_ready_for_network(self) -> bool:
        return (self._base / f"{self.name}.ready").exists()

    @property
    def is_listening(self) -> bool:
        return "Server listening" in (self._base / f"{self.name}.log").read_text()

    def path(self, path: Path | str) -> Path:
        """What this host has at ``path``, from where the tests run."""
        return Path(f"/proc/{self.server.pid}/root{path}")

    def entering(self, cwd: Path | str = "/") -> list[str]:
        """The words that have a command run on this host in ``cwd``; its process is the command itself."""
        namespaces = ["--net", "--mount", "--uts", f"--wdns={cwd}"]
        return ["nsenter", f"--target={self.server.pid}", *namespaces, "--"]

    def command(self, *words: str) -> str:
        """Run a short system command on this host; what it says."""
        done = subprocess.run(
            [*self.entering(), *words], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, f"{self.name}: {shlex.join(words)}: {done.stderr}"
        return done.stdout

    def start(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None, cwd: Path | str
    ) -> Job:
        """Start a program here, in a session of its own."""
        self._jobs += 1
        said = self._base / "said" / f"{self.name}-{self._jobs}"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [*self.entering(cwd), *map(str, argv)],
                env=_plain_environment(self._base) | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Job(process, said)

    def processes(self) -> list[int]:
        """The live processes of this host but for its services."""
        if self.server.poll() is not None:
            return []
        ours = os.stat(f"/proc/{self.server.pid}/ns/net").st_ino
        return [pid for pid in pids_in_network(ours) if pid not in self.daemons]

    def stop(self) -> None:
        """End all its processes, and with them the host."""
        if self.server.poll() is None:
            ours = os.stat(f"/proc/{self.server.pid}/ns/net").st_ino
            kill_all(lambda: [pid for pid in pids_in_network(ours) if pid != self.server.pid])
            self.server.kill()
        self.server.wait()


def pids_in_network(inode: int) -> list[int]:
    """The live processes whose network is the one with this inode."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino == inode:
                found.append(int(entry))
        except OSError:  # gone meanwhile, or a zombie, which has none
            continue
    return [pid for pid in found if is_running(pid)]


def kill_all(listed: Callable[[], Sequence[int]], timeout: float = 10.0) -> None:
    """Kill the processes that ``listed`` names, until it names none: they may start others meanwhile."""
    deadline = time.monotonic() + timeout
    while pids := listed():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert time.monotonic() < deadline, f"processes {pids} do not end"
        time.sleep(0.02)


def _needed(base: Path) -> list[str]:
    """Folders without which nothing runs on a host, as far as they lie where each host has its own."""
    needed = {str(base)} | {
        str(Path(place).resolve()) for place in (ROOT, sys.prefix, sys.base_prefix)
    }
    hidden = sorted(place for place in needed if any(place.startswith(f"{own}/") for own in _OWN))
    return [place for place in hidden if not any(place.startswith(f"{o}/") for o in hidden)]


def _plain_environment(base: Path) -> dict[str, str]:
    """Little, as on a host that somebody has just logged in to."""
    path = f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    threads = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return {"HOME": str(Path.home()), "LANG": "C.UTF-8", "PATH": path, MARKER: str(base)} | threads


def _die_with_parent() -> None:
    """In the new process: let the system kill it when the tests are killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
