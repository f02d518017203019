"""What schedulers tell a process about its place, in the variables that torch reads.

torchrun, DeepSpeed and Kubernetes' operators set ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and
``MASTER_ADDR``. Under ``srun`` and ``mpirun`` each process finds the same facts under other names:
Slurm's (``man srun``, OUTPUT ENVIRONMENT VARIABLES), Open MPI's (``OMPI_COMM_WORLD_*``) and those of
the PMI launchers MPICH, Intel MPI and MVAPICH (``PMI_*``, ``MPI_LOCAL*``). No MPI library is needed.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Mapping, MutableMapping
from typing import Final

from megatron.errors import LaunchError

# size, rank, local rank, local size, node: a size above 1 says that this launcher is at work.
_SCHEDULERS: Final = {
    "mpirun": (
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    "srun": (
        # Of the step, not of the job: in a batch script, which is one process, it is not set.
        "SLURM_STEP_NUM_TASKS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "",
        "SLURM_NODEID",
    ),
    "mpiexec": ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
}
# Names of the hosts in the order of their node ranks, with commas: what deepy.py tells the ranks.
HOSTS_VARIABLE: Final = "NEOX_HOSTS"
# Below the ports that systems give to outgoing connections.
FIRST_PORT, PORTS = 15_000, 15_000


def adopt_rank_variables(env: MutableMapping[str, str] | None = None) -> None:
    """Set the variables that a scheduler has left to be worked out in this process's environment.

    Raises:
        LaunchError: they do not make sense, or say too little.
    """
    env = os.environ if env is None else env
    env.update(rank_variables(env))


def rank_variables(env: Mapping[str, str]) -> dict[str, str]:
    """``RANK``, ``WORLD_SIZE`` and the others as far as they are missing and a scheduler says them.

    A process that has ``RANK`` or ``WORLD_SIZE`` already gets nothing: whoever set them stands nearer.

    Raises:
        LaunchError: see :func:`adopt_rank_variables`.
    """
    if env.get("RANK") or env.get("WORLD_SIZE"):
        return {}
    for launcher, names in _SCHEDULERS.items():
        size = env.get(names[0], "")
        if size.isdigit() and int(size) > 1:
            return _complete(launcher, names, int(size), env)
    return {}


def _complete(
    launcher: str, names: tuple[str, str, str, str, str], size: int, env: Mapping[str, str]
) -> dict[str, str]:
    _, rank, local_rank, local_size, node = names
    for name in (rank, local_rank):
        if not env.get(name, "").isdigit():
            raise LaunchError(
                f"environment: {names[0]}={size}, but {name} is not set to a number\n"
                "  to do: start the ranks with ./deepy.py or torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK "
                "and LOCAL_WORLD_SIZE for each"
            )
    found = {"RANK": env[rank], "WORLD_SIZE": str(size), "LOCAL_RANK": env[local_rank]}
    if local_size and env.get(local_size):
        found["LOCAL_WORLD_SIZE"] = env[local_size]
    if launcher == "srun":
        counts = counts_of_nodes("SLURM_STEP_TASKS_PER_NODE", env)
        number = int(env.get(node, "0") or 0)
        if number < len(counts):
            found["LOCAL_WORLD_SIZE"] = str(counts[number])
        found["GROUP_RANK"] = str(number)
    found.update(_meeting_place(launcher, env, found))
    return {name: value for name, value in found.items() if not env.get(name)}


def _meeting_place(
    launcher: str, env: Mapping[str, str], found: Mapping[str, str]
) -> dict[str, str]:
    """Address and port, the same on every rank: of the first node, and by the job's own number."""
    address = env.get("MASTER_ADDR") or _first_host(launcher, env, found)
    if address is None:
        raise LaunchError(
            f"environment: {launcher} does not say on which host rank 0 is\n"
            "  to do: set MASTER_ADDR to that host and MASTER_PORT to a port that is free there, for all "
            "ranks (Open MPI: mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 ...)"
        )
    job = env.get("SLURM_JOB_ID", "") + "." + env.get("SLURM_STEP_ID", "")
    identity = job if launcher == "srun" else env.get("OMPI_MCA_orte_hnp_uri", address)
    port = FIRST_PORT + zlib.crc32(identity.encode()) % PORTS
    return {"MASTER_ADDR": address, "MASTER_PORT": env.get("MASTER_PORT") or str(port)}


def _first_host(launcher: str, env: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    if launcher == "srun":
        hosts = expand_host_list(
            env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
        )
        return hosts[0] if hosts else None
    if found.get("LOCAL_WORLD_SIZE") == found["WORLD_SIZE"]:
        return "127.0.0.1"
    # Open MPI 4 tells each process where its mpirun is. That is rank 0's host, unless the hosts were
    # named in another order: rank 0 finds out.
    match = re.search(r"tcp6?://([0-9.]+)[,:]", env.get("OMPI_MCA_orte_hnp_uri", ""))
    if match is None or (found["RANK"] == "0" and not is_own_address(match[1])):
        return None
    return match[1]


def counts_of_nodes(name: str, env: Mapping[str, str]) -> list[int]:
    """One of Slurm's variables: ``2(x3),1`` is two (tasks, processors) on each of three nodes, then one.

    Raises:
        LaunchError: it is not written so.
    """
    counts: list[int] = []
    text = env.get(name, "")
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise LaunchError(f"environment: {name}={text!r}: expected such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def named_hosts(env: Mapping[str, str]) -> list[str]:
    """The hosts of a start of ours by node rank; none under other launchers."""
    return [name.strip() for name in env.get(HOSTS_VARIABLE, "").split(",") if name.strip()]


def expand_host_list(text: str) -> list[str]:
    """The names in Slurm's short form: ``gpu[01-03,7]-ib,login`` is gpu01-ib, gpu02-ib, …"""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names = [""]
        for literal, inside in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            endings = [literal] if literal else _numbers(inside)
            names = [name + ending for name in names for ending in endings]
        hosts += names
    return hosts


def _numbers(text: str) -> list[str]:
    """``01-03,7`` written out; leading zeros stay."""
    found: list[str] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not dash:
            found.append(low)
        else:
            found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found


def is_own_address(host: str) -> bool:
    """Whether a name or address means this machine: only its own addresses can be bound."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, None, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    except OSError:
        return False
    return False
