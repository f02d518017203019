"""What this host has, asked without importing torch: accelerators, processor cores, free ports.

Counting does not touch a driver: a launcher that initialises one would hold memory on every device.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from megatron.errors import LaunchError
from megatron.ranks import is_own_address
from megatron.runtime.ports import port_problem

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
PORT_REMEDY: Final = "set master_port to a free port, or leave it out and one is found"


def is_this_host(name: str) -> bool:
    """Whether a name, perhaps with a user before it, means the machine that asks."""
    name = name.rpartition("@")[2]
    here = socket.gethostname()
    if name in _LOOPBACK or name in (here, here.split(".")[0]):
        return True
    return is_own_address(name)


def accelerator_count(env: Mapping[str, str] | None = None, devices: Path = Path("/dev")) -> int:
    """Accelerators that a process started here would see.

    ``DS_ACCELERATOR=cpu`` switches them off; ``CUDA_VISIBLE_DEVICES`` chooses among them.
    """
    env = os.environ if env is None else env
    if env.get("DS_ACCELERATOR") == "cpu":
        return 0
    present = sum(1 for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit())
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    # The driver takes entries up to the first one that is no device.
    chosen = []
    for entry in visible.split(","):
        name = entry.strip()
        if not name or name == "-1":
            break
        chosen.append(name)
    return min(len(chosen), present) if all(name.isdigit() for name in chosen) else len(chosen)


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processor cores that this process may use: its affinity, and a container's share of time."""
    cores = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
        if limit != "max":
            cores = min(cores, max(1, int(limit) // int(period)))
    except (OSError, ValueError):
        pass  # no such limit on this system
    return cores


def check_port_is_free(port: int) -> None:
    """Insist that a named port can be bound on this host.

    Raises:
        LaunchError: another program has it, or it needs rights that this user lacks.
    """
    problem = port_problem(port)
    if problem is not None:
        raise LaunchError(f"{port_text(port, problem)}\n  to do: {PORT_REMEDY}")


def port_text(port: int, problem: str) -> str:
    """What to say of a named port that cannot be bound."""
    return f"master_port: {port} cannot be used: {problem}"
