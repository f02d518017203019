"""Which hosts take part, how many processes each of them runs, and what starts them there.

``include`` and ``exclude`` are written as DeepSpeed's launcher has them: ``host[:slot,slot…]``, several
joined by ``@``.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from megatron.errors import LaunchError
from megatron.launch.hostfile import Host, read_hostfile
from megatron.launch.machine import is_this_host
from megatron.launch.slurm import slurm_tasks
from megatron.neox_arguments.sections import LaunchArgs
from megatron.ranks import expand_host_list

# What starts the ranks of this host alone; for others it is the configuration's ``launcher``.
LOCAL: Final = "local"
HOSTFILE_VARIABLE: Final = "DLTS_HOSTFILE"
USUAL_HOSTFILE: Final = Path("/job/hostfile")
# The name of a host that Slurm is still to choose; no host has it.
ANY_HOST: Final = "(any)"


@dataclass(frozen=True)
class Share:
    """What one host runs.

    Attributes:
        host: its name.
        ranks: number of its processes.
        devices: numbers of the devices that they use, where not simply the first ones.
    """

    host: str
    ranks: int
    devices: tuple[int, ...] | None = None


def plan_hosts(
    launch: LaunchArgs, env: Mapping[str, str], accelerators: int
) -> tuple[tuple[Share, ...], str]:
    """The hosts and processes of a start, and what starts them.

    ``accelerators``: those of this host.

    Raises:
        LaunchError: the keys contradict each other, or name what is not there.
    """
    launcher = _launcher(launch)
    path = find_hostfile(launch, env)
    if path is not None:
        hosts = hosts_of_hostfile(launch, path, accelerators or 1)
        is_here = len(hosts) == 1 and is_this_host(hosts[0].host)
        if not is_here or launch.force_multi or hosts[0].devices is not None:
            return hosts, launcher
        _check_count(launch, hosts[0], accelerators)
        return hosts, LOCAL
    if launcher == "slurm":
        return hosts_of_slurm(launch, env, slurm_tasks(env) or accelerators or 1), launcher
    here = Share(socket.gethostname(), launch.num_gpus or accelerators or 1)
    _check_one_host(launch, env)
    _check_count(launch, here, accelerators)
    return (here,), launcher if launch.force_multi else LOCAL


def find_hostfile(launch: LaunchArgs, env: Mapping[str, str]) -> str | None:
    """The hostfile that applies; one that is named anywhere is returned, whether it exists or not."""
    named = launch.hostfile or env.get(HOSTFILE_VARIABLE)
    if named:
        return named
    return str(USUAL_HOSTFILE) if USUAL_HOSTFILE.is_file() else None


def hosts_of_hostfile(launch: LaunchArgs, path: str, default_slots: int) -> tuple[Share, ...]:
    """The hosts of a hostfile after ``include``, ``exclude``, ``num_nodes`` and ``num_gpus``.

    Args:
        default_slots: processes of a host whose line says none.

    Raises:
        LaunchError: the file is wrong, or the keys name what is not in it, or leave nothing.
    """
    slots = {host.name: _all_devices(host, default_slots) for host in read_hostfile(path)}
    if launch.include and launch.exclude:
        raise LaunchError(
            "include, exclude: only one of them can be given\n  to do: name the hosts and devices to use "
            "in include alone"
        )
    if launch.include:
        chosen = _read_filter("include", launch.include, slots)
        kept = {name: chosen[name] or every for name, every in slots.items() if name in chosen}
    elif launch.exclude:
        chosen = _read_filter("exclude", launch.exclude, slots)
        kept = {
            name: tuple(slot for slot in every if chosen[name] and slot not in chosen[name])
            if name in chosen
            else every
            for name, every in slots.items()
        }
    else:
        kept = slots
    names = [name for name, devices in kept.items() if devices]
    names = names[: launch.num_nodes] if launch.num_nodes > 0 else names
    if not names:
        raise LaunchError(f"hostfile: {path}: include, exclude and num_nodes leave no host of it")
    if launch.num_nodes > len(names):
        raise LaunchError(
            f"num_nodes: {launch.num_nodes}, but {path} has {len(names)} (after include, exclude)"
        )
    return tuple(_share(name, kept[name], launch, slots[name]) for name in names)


def hosts_of_slurm(launch: LaunchArgs, env: Mapping[str, str], per_host: int) -> tuple[Share, ...]:
    """The hosts of the Slurm job that this process is in, as far as ``num_nodes`` says.

    Raises:
        LaunchError: there is no job and no ``num_nodes``, or the job has fewer hosts.
    """
    if launch.include or launch.exclude:
        raise LaunchError(
            "include, exclude: choose among the hosts of a hostfile\n"
            "  to do: tell Slurm instead: launcher_args: '--nodelist=node1,node2' or '--exclude=node3'"
        )
    names = _slurm_hosts(env)
    if not names:
        if launch.num_nodes < 1:
            raise LaunchError(
                "launcher: slurm: this is no Slurm job (SLURM_JOB_NODELIST is not set)\n"
                "  to do: start it in one (sbatch, salloc), name a hostfile, or set num_nodes and let srun "
                "ask for the hosts"
            )
        names = [ANY_HOST] * launch.num_nodes
    if launch.num_nodes > len(names):
        raise LaunchError(f"num_nodes: {launch.num_nodes}, but the Slurm job has {len(names)}")
    chosen = names[: launch.num_nodes] if launch.num_nodes > 0 else names
    return tuple(Share(name, launch.num_gpus or per_host) for name in chosen)


def _all_devices(host: Host, default_slots: int) -> tuple[int, ...]:
    return tuple(range(default_slots if host.slots is None else host.slots))


def _share(name: str, devices: Sequence[int], launch: LaunchArgs, every: Sequence[int]) -> Share:
    """``num_gpus`` of the devices; without a filter it may ask for more than the slots say."""
    if tuple(devices) == tuple(every):
        return Share(name, launch.num_gpus or len(devices))
    if launch.num_gpus is not None and launch.num_gpus > len(devices):
        raise LaunchError(
            f"num_gpus: {launch.num_gpus}, but include or exclude leave {len(devices)} on {name}"
        )
    chosen = tuple(devices[: launch.num_gpus])
    return Share(name, len(chosen), chosen)


def _read_filter(
    key: str, text: str, slots: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Host → the devices named for it; none means the whole host."""
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        name, colon, numbers = (piece.strip() for piece in part.partition(":"))
        if name not in slots:
            known = ", ".join(slots)
            raise LaunchError(f"{key}: {text}: {name!r} is none of the hostfile's hosts: {known}")
        devices = []
        for number in numbers.split(",") if colon else ():
            if not number.strip().isdigit() or int(number) not in slots[name]:
                raise LaunchError(
                    f"{key}: {text}: {number.strip()!r} is no device of {name}, which has "
                    f"{len(slots[name])} slots, counted from 0"
                )
            devices.append(int(number))
        found[name] = (*found.get(name, ()), *devices)
    return found


def _launcher(launch: LaunchArgs) -> str:
    """The configuration's launcher, with GPT-NeoX's two switches."""
    if launch.deepspeed_slurm and launch.deepspeed_mpi:
        raise LaunchError("deepspeed_mpi, deepspeed_slurm: only one of them can be true")
    if launch.deepspeed_slurm:
        return "slurm"
    if launch.deepspeed_mpi and launch.launcher in ("pdsh", "slurm"):
        return "openmpi"
    return launch.launcher


def _check_one_host(launch: LaunchArgs, env: Mapping[str, str]) -> None:
    """Without a list of hosts there is one: nothing may say otherwise."""
    wanted = {
        f"num_nodes: {launch.num_nodes}": launch.num_nodes > 1,
        "include": launch.include is not None,
        "exclude": launch.exclude is not None,
    }
    for key, is_wanted in wanted.items():
        if is_wanted:
            raise LaunchError(
                f"{key} needs the names of the hosts\n"
                "  to do: name a hostfile (a file of lines such as 'node1 slots=8'), or, in a Slurm job, "
                "set launcher: slurm"
            )
    if launch.num_nodes < 1 and len(_slurm_hosts(env)) > 1:
        raise LaunchError(
            "this Slurm job has several hosts, but the start would use this one alone\n"
            "  to do: set launcher: slurm to use all of them, or num_nodes: 1 for this one"
        )


def _check_count(launch: LaunchArgs, here: Share, accelerators: int) -> None:
    if accelerators and here.ranks > accelerators:
        what = "num_gpus" if launch.num_gpus else "slots of the hostfile"
        raise LaunchError(
            f"{what}: {here.ranks} processes need a GPU each, {accelerators} are visible\n"
            "  to do: lower it, or set DS_ACCELERATOR=cpu in the environment to run on the CPU"
        )


def _slurm_hosts(env: Mapping[str, str]) -> list[str]:
    """The hosts of the Slurm job that this process is in; none outside one."""
    return expand_host_list(env.get("SLURM_JOB_NODELIST", ""))
