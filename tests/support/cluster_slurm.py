"""Slurm on the bench: a controller on the first host, both hosts its nodes.

One munged serves all, by a socket that both hosts see. There is no accounting, and no cgroup is made::

    with Slurm(cluster) as slurm:
        assert slurm.run(["srun", "-N2", "hostname"]).status == 0

Slurm's own programs are services of the hosts: what :meth:`Cluster.processes` names are jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.cluster import Cluster
from tests.support.cluster_host import Job
from tests.support.doors import Done
from tests.support.undone import Undone

_CPUS: Final = 4  # that each node says it has
# Slurm wants a file system here even when it constrains nothing.
_CGROUP: Final = Path("/sys/fs/cgroup")
_CGROUP_CONF: Final = f"""
CgroupPlugin=cgroup/v1
CgroupMountpoint={_CGROUP}
IgnoreSystemd=yes
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
"""
_SLURM_CONF: Final = """
ClusterName=bench
SlurmctldHost=node1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=10
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
{nodes}
PartitionName=debug Nodes=node1,node2 Default=YES State=UP OverSubscribe=YES MaxTime=60
"""


class Slurm(Undone):
    """A Slurm of two nodes, from ``__enter__`` to ``__exit__``.

    Attributes:
        env: what Slurm's commands need to find it.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._base = cluster.base / "slurm"
        self.env = {"SLURM_CONF": str(self._base / "slurm.conf")}

    def _set_up(self) -> None:
        self._write_files()
        munge = [
            f"--{name}-file={self._base}/munge.{name}" for name in ("key", "pid", "log", "seed")
        ]
        socket = self._base / "munge.socket"
        self._serve(1, ["munged", "--foreground", "--force", f"--socket={socket}", *munge])
        self._wait_until(socket.exists, "munged")
        self._serve(1, ["slurmctld", "-D"])
        for number, name in enumerate(self._cluster.names, start=1):
            self._cluster.mount(number, "-t", "tmpfs", "tmpfs", _CGROUP)
            self._undo.callback(self._cluster.unmount, number, _CGROUP)
            self._serve(number, ["slurmd", "-D", "-N", name])
        self._wait_until(self.is_idle, "slurmctld, slurmd")
        for host in self._cluster.hosts.values():  # with what the services have started
            services = set(host.processes())
            host.daemons |= services
            self._undo.callback(host.daemons.difference_update, services)

    def _write_files(self) -> None:
        for name in ("state", "spool-node1", "spool-node2"):
            (self._base / name).mkdir(parents=True)
        key = self._base / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        nodes = "\n".join(
            f"NodeName={host.name} NodeAddr={host.address} NodeHostname={host.name} "
            f"CPUs={_CPUS} RealMemory=8000"
            for host in self._cluster.hosts.values()
        )
        (self._base / "slurm.conf").write_text(_SLURM_CONF.format(base=self._base, nodes=nodes))
        (self._base / "cgroup.conf").write_text(_CGROUP_CONF)

    def _serve(self, number: int, argv: Sequence[str]) -> None:
        """Start a service."""
        job = self._cluster.on(number, argv, env=self.env, cwd=self._base)
        self._undo.callback(job.wait, 0.0)  # which kills it

    def _wait_until(self, what: Callable[[], bool], who: str, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while not what():
            logs = "\n".join(path.read_text() for path in self._base.glob("*.log"))
            assert time.monotonic() < deadline, f"{who} did not start in time:\n{logs}"
            time.sleep(0.1)

    def is_idle(self) -> bool:
        """Whether both nodes wait for jobs."""
        return self.run(["sinfo", "--noheader", "--format=%T %D"]).out.split() == ["idle", "2"]

    def start(
        self, argv: Sequence[str | Path], *, cwd: Path | str, env: Mapping[str, str] | None = None
    ) -> Job:
        """Start a program on the first host, as somebody who has logged in there."""
        return self._cluster.on(1, argv, env=self.env | dict(env or {}), cwd=cwd)

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path | str = "/",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Done:
        """Like :meth:`start`, and wait for its end."""
        return self.start(argv, cwd=cwd, env=env).wait(timeout)

    def jobs(self) -> list[str]:
        """The numbers of the jobs that wait or run."""
        return self.run(["squeue", "--noheader", "--format=%A"]).out.split()

    def cancel_all(self) -> None:
        """After a test: no job shall be there for the next."""
        if self.jobs():
            self.run(["scancel", "--user=root", "--signal=KILL"])
            self.run(["scancel", "--user=root"])
        self._wait_until(self.is_idle, "a job to end")
