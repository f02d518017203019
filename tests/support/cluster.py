"""Two real hosts on this machine, for tests of what happens between hosts.

Each has a network interface, a host name, mounts, /tmp and shared memory of its own and an ssh server
that the other may log in to::

    with Cluster() as cluster:
        job = cluster.on(2, ["hostname"])
        assert job.wait(5).out == "node2\\n"

Processes have numbers of the one machine below: a program must not be ended by its name here. Needs
root and a few Debian packages, see :func:`reason_not_to_run`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.cluster_host import INTERFACE, MARKER, NETWORK, Host, Job, kill_all
from tests.support.doors import Done, is_running
from tests.support.undone import Undone
from tests.support.watching import words_of

PACKAGES: Final = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "pdsh": "pdsh",
    "ip": "iproute2",
    "unshare": "util-linux",
}
SLURM_PACKAGES: Final = {"slurmd": "slurm-wlm", "munged": "munge"}
MPI_PACKAGES: Final = {"mpirun.openmpi": "openmpi-bin"}
MPICH_PACKAGES: Final = {"mpirun.mpich": "mpich"}
_PREFIX: Final = "neox-bench-"
# Not /tmp: every host has its own.
_PLACE: Final = Path("/var/tmp")
# What the bench does later, tried where nobody sees it.
_TRIAL: Final = (
    "mount -t tmpfs none /mnt && hostname trial && ip link add one type veth peer name two"
)


def reason_not_to_run(packages: Mapping[str, str] = PACKAGES) -> str | None:
    """Why there can be no bench on this machine; None if there can."""
    if os.geteuid() != 0:
        return "two hosts on one machine need root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted(
        {package for name, package in packages.items() if not shutil.which(name, path=path)}
    )
    if missing:
        return f"missing here: apt-get install --no-install-recommends {' '.join(missing)}"
    trial = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c", _TRIAL],
        capture_output=True,
        text=True,
        check=False,
    )
    if trial.returncode:
        return f"this machine lets nobody make networks or mounts: {trial.stderr.strip()}"
    return None


class Cluster(Undone):
    """The bench, from ``__enter__`` to ``__exit__``. Hosts are numbered 1 and 2.

    Attributes:
        base: its folder; both hosts see it.
        shared: an empty folder that both hosts see.
        private: a folder with a disk of its own on each host, at the same path.
        names, addresses: of the hosts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE))
        self.shared, self.private = self.base / "shared", self.base / "private"
        self.hosts: dict[int, Host] = {}

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts.values()]

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.hosts.values()]

    def _set_up(self) -> None:
        self._undo.callback(shutil.rmtree, self.base, ignore_errors=True)
        remove_leftovers()
        (self.base / "owner").write_text(json.dumps(_identity(os.getpid())))
        for name in ("shared", "private", "ssh", "said"):
            (self.base / name).mkdir()
        lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{number} node{number}" for number in (1, 2))]
        (self.base / "hosts").write_text("\n".join(lines) + "\n")
        write_ssh_files(self.base)
        for number in (1, 2):
            self.hosts[number] = host = Host(number, self.base)
            self._undo.callback(host.stop)
        for host in self.hosts.values():
            host.wait_until(lambda host=host: host.is_ready_for_network)  # type: ignore[misc]
        self._connect()
        for host in self.hosts.values():
            host.wait_until(lambda host=host: host.is_listening)  # type: ignore[misc]

    def _connect(self) -> None:
        """A cable between the hosts: each end is put into one of them as it is made."""
        first, second = self.hosts.values()
        end = ["type", "veth", "peer", "name", INTERFACE, "netns", str(second.server.pid)]
        first.command("ip", "link", "add", "name", INTERFACE, *end)
        for host in self.hosts.values():
            host.command("ip", "addr", "add", f"{host.address}/24", "dev", INTERFACE)
            host.command("ip", "link", "set", INTERFACE, "up")

    def on(
        self,
        number: int,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Job:
        """Start a program on a host, in ``shared`` by default, with a bare environment and ``env``."""
        return self.hosts[number].start(argv, env, cwd or self.shared)

    def run(
        self,
        number: int,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout: float = 60.0,
    ) -> Done:
        """Like :meth:`on`, and wait for its end."""
        return self.on(number, argv, env=env, cwd=cwd).wait(timeout)

    def link_down(self, number: int) -> None:
        """Pull the host's network cable."""
        self.hosts[number].command("ip", "link", "set", INTERFACE, "down")

    def link_up(self, number: int) -> None:
        self.hosts[number].command("ip", "link", "set", INTERFACE, "up")

    def mount(self, number: int, *arguments: str | Path) -> None:
        """Mount something on one host alone: the arguments of ``mount``. Undo it with :meth:`unmount`."""
        self.hosts[number].command("mount", *map(str, arguments))

    def unmount(self, number: int, place: Path | str) -> None:
        """Take away what was mounted last at ``place``, also when it is in use."""
        self.hosts[number].command("umount", "--lazy", str(place))

    def processes(self, number: int | None = None) -> dict[int, str]:
        """What runs on one host or both beside their services: process number (of this machine) → command."""
        hosts = self.hosts.values() if number is None else [self.hosts[number]]
        return {pid: _command_line(pid) for host in hosts for pid in host.processes()}

    def left_after(self, seconds: float) -> dict[int, str]:
        """Like :meth:`processes`, ``seconds`` from now or as soon as there are none."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def kill_processes(self) -> None:
        """After a test that has failed: nothing of it shall disturb the next."""
        kill_all(lambda: list(self.processes()))

    def add_cleanup(self, callback: object, *arguments: object) -> None:
        """Something to be done before the hosts go."""
        assert callable(callback)
        self._undo.callback(callback, *arguments)


def write_ssh_files(base: Path) -> None:
    """Keys made for this bench, and what the servers and the clients need."""
    folder = base / "ssh"
    for name in ("host", "id"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    (folder / "authorized").write_text((folder / "id.pub").read_text())
    Path("/run/sshd").mkdir(exist_ok=True)  # the server insists
    for number in (1, 2):
        settings = {
            "ListenAddress": f"{NETWORK}.{number}",
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "authorized",
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "MaxStartups": "100",
            "SetEnv": f"{MARKER}={base}",
        }
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        (folder / f"node{number}.conf").write_text("".join(lines))
    client = {
        "IdentityFile": folder / "id",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    lines = ["Host *\n", *(f"  {name} {value}\n" for name, value in client.items())]
    (folder / "config").write_text("".join(lines))


def remove_leftovers() -> None:
    """Remove benches whose tests were killed: their processes, by the marker that they carry, and folders."""
    for base in _PLACE.glob(f"{_PREFIX}*"):
        try:
            owner = json.loads((base / "owner").read_text())
        except (OSError, ValueError):  # one that begins, or has just ended
            continue
        if _identity(owner["pid"]) != owner:
            kill_all(lambda base=base: _marked(base))  # type: ignore[misc]
            shutil.rmtree(base, ignore_errors=True)


def _identity(pid: int) -> dict[str, int | str]:
    """A process, told from another that gets its number later by the time of its start."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "gone"
    return {"pid": pid, "started": started}


def _marked(base: Path) -> list[int]:
    """The live processes that a bench has started."""
    word = f"{MARKER}={base}".encode()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if word in (words_of(int(entry), "environ") or ()) and is_running(int(entry)):
            found.append(int(entry))
    return found


def _command_line(pid: int) -> str:
    words = words_of(pid, "cmdline")
    if words is None:
        return "(gone)"
    return " ".join(word.decode(errors="replace") for word in words).strip()
