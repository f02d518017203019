"""What a host allows its processes: shared memory, open files, locked memory, cores."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

from megatron.doctor.finding import ByHost, Finding, groups, names
from megatron.doctor.needs import Needs
from megatron.launch.machine import usable_cores
from megatron.monitor.units import bytes_text

_GIB: Final = 2**30
_USUAL_SHM: Final = _GIB
_FILES: Final = 4096  # open files that a rank with its workers and sockets should be allowed
_FILES_AT_LEAST: Final = 1024
_UNLIMITED: Final = -1


class LimitFacts(TypedDict):
    """Sizes in bytes; a limit of -1 is none."""

    shm_size: int
    shm_free: int
    open_files: int
    locked_memory: int
    cores: int
    infiniband: bool


def look(shm: str = "/dev/shm") -> LimitFacts:
    """This host, as this process sees it: limits come with the login."""
    space = os.statvfs(shm)
    return {
        "shm_size": space.f_blocks * space.f_frsize,
        "shm_free": space.f_bavail * space.f_frsize,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "cores": usable_cores(),
        "infiniband": any(Path("/sys/class/infiniband").glob("*")),
    }


def judge(hosts: ByHost[LimitFacts], needs: Needs | None) -> Iterator[Finding]:
    """Too little of something on some host."""
    yield from _judge_shm(hosts, needs)
    yield from _judge_files(hosts)
    yield from _judge_locked(hosts)
    if needs is not None:
        yield from _judge_cores(hosts, needs)


def _judge_shm(hosts: ByHost[LimitFacts], needs: Needs | None) -> Iterator[Finding]:
    needed = needs.shm_bytes if needs is not None else 0
    small = {host: f for host, f in hosts.items() if f["shm_free"] < max(needed, _USUAL_SHM)}
    for host, facts in small.items():
        why = f"; the workers' batches need {bytes_text(needed)}" if needed else ""
        yield Finding(
            "limits",
            "error" if facts["shm_free"] < needed else "warning",
            f"{host}: /dev/shm has {bytes_text(facts['shm_size'])}, "
            f"{bytes_text(facts['shm_free'])} free{why}; data workers and NCCL need it",
            "mount -o remount,size=50% /dev/shm (docker: --shm-size=8g or --ipc=host), or num_workers: 0",
            "memory",
        )
    if not small:
        least = min(facts["shm_free"] for facts in hosts.values())
        yield Finding("limits", "ok", f"/dev/shm: at least {bytes_text(least)} free", "", "memory")


def _judge_files(hosts: ByHost[LimitFacts]) -> Iterator[Finding]:
    few = {h: f["open_files"] for h, f in hosts.items() if 0 <= f["open_files"] < _FILES}
    for limit, which in groups(few).items():
        yield Finding(
            "limits",
            "error" if limit < _FILES_AT_LEAST // 4 else "warning",
            f"{names(which)}: ulimit -n is {limit:,} open files, {_FILES:,} are usual",
            "ulimit -n 65536 where the ranks start; lasting: nofile in /etc/security/limits.conf",
        )
    if not few:
        limits = [f["open_files"] for f in hosts.values() if f["open_files"] != _UNLIMITED]
        yield Finding(
            "limits", "ok", f"ulimit -n: {min(limits):,}" if limits else "ulimit -n: none"
        )


def _judge_locked(hosts: ByHost[LimitFacts]) -> Iterator[Finding]:
    tight = [
        host
        for host, f in hosts.items()
        if f["infiniband"] and f["locked_memory"] != _UNLIMITED and f["locked_memory"] < _GIB
    ]
    if tight:
        yield Finding(
            "limits",
            "warning",
            f"{names(tight)}: ulimit -l (locked memory) is below 1 GiB, which InfiniBand needs to register "
            "buffers",
            "memlock unlimited in /etc/security/limits.conf (docker: --ulimit memlock=-1)",
        )


def _judge_cores(hosts: ByHost[LimitFacts], needs: Needs) -> Iterator[Finding]:
    wanted = needs.ranks_per_host * (1 + needs.num_workers)
    few = {host: f["cores"] for host, f in hosts.items() if f["cores"] < wanted}
    if few:
        yield Finding(
            "limits",
            "warning",
            f"{names(list(few))}: {min(few.values())} cores for {wanted} processes "
            f"({needs.ranks_per_host} ranks, {needs.num_workers} workers each)",
            "lower num_workers, or give the job more cores (Slurm: --cpus-per-task)",
            "speed",
        )
    else:
        cores = min(f["cores"] for f in hosts.values())
        yield Finding("limits", "ok", f"{cores} cores for {wanted} processes of a host")
