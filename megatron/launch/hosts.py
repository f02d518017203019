"""Which hosts take part, and how many processes each of them runs.

``include`` and ``exclude`` are written as DeepSpeed's launcher has them: ``host[:slot,slot…]``, several
joined by ``@``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from megatron.errors import LaunchError
from megatron.launch.hostfile import Host, read_hostfile
from megatron.neox_arguments.sections import LaunchArgs
from megatron.ranks import expand_host_list

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
    names = expand_host_list(env.get("SLURM_JOB_NODELIST", ""))
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


def in_several_hosts_of_slurm(env: Mapping[str, str]) -> bool:
    """Whether this process stands in a Slurm job of more than one host."""
    return len(expand_host_list(env.get("SLURM_JOB_NODELIST", ""))) > 1
