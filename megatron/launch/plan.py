"""What will be started: how many ranks, of which command, with which environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron.errors import LaunchError
from megatron.launch.command_line import Command
from megatron.launch.hostfile import Host, read_hostfile
from megatron.launch.machine import accelerator_count, usable_cores
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.payload import VARIABLE, payload_of
from megatron.neox_arguments.sections import LaunchArgs

ROOT = Path(__file__).resolve().parents[2]
# Programs that take a batch of the size that the configuration says. The others only need the layout.
_TRAINING_SCRIPT = "train.py"


@dataclass(frozen=True)
class LaunchPlan:
    """Everything about a start on this host.

    Attributes:
        ranks: number of processes.
        command: program and arguments of each of them.
        env: variables to set for them beside this process's own.
        address: the address at which they meet.
        port: the port at which they meet; None finds a free one.
    """

    ranks: int
    command: tuple[str, ...]
    env: Mapping[str, str]
    address: str
    port: int | None


def check_configuration(
    command: Command, world_size: int | None = None, *, may_be_a_part: bool = False
) -> NeoXArgs:
    """The configuration that a command line names; without ``world_size``, as far as none is needed.

    ``may_be_a_part``: files without a model are fine too.

    Raises:
        ConfigError: every problem there is.
    """
    return NeoXArgs.from_ymls(
        command.configs,
        overrides=command.overrides,
        deepspeed_config=command.deepspeed_config,
        conf_dir=command.conf_dir,
        world_size=world_size,
        may_be_a_part=may_be_a_part,
    )


def plan_launch(
    command: Command, args: NeoXArgs, env: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Decide what to start.

    Raises:
        LaunchError: what is asked for cannot be started from here.
        ConfigError: layout and batch do not fit the number of ranks.
    """
    env = os.environ if env is None else env
    script = find_script(command.script)
    _refuse_several_hosts(args.launch)
    host = _one_host(args.launch)
    accelerators = accelerator_count(env)
    ranks = _rank_count(args.launch, host, accelerators)
    if script.name == _TRAINING_SCRIPT:
        check_configuration(command, ranks)  # again, now that it is known how many there are
    names = [file.path for file in args.files]
    extra = names.pop() if command.deepspeed_config is not None else None
    return LaunchPlan(
        ranks=ranks,
        command=(sys.executable, "-u", str(script), *command.script_arguments(names, extra)),
        env=rank_environment(env, ranks, accelerators) | {VARIABLE: payload_of(args)},
        address=args.launch.master_addr or "127.0.0.1",
        port=args.launch.master_port,
    )


def find_script(name: str) -> Path:
    """The program to run: here, else beside `deepy.py`.

    Raises:
        LaunchError: there is none.
    """
    for candidate in (Path(name), ROOT / name):
        if candidate.is_file():
            return candidate
    raise LaunchError(f"command line: no such script: {name} (looked here and in {ROOT})")


def rank_environment(env: Mapping[str, str], ranks: int, accelerators: int) -> dict[str, str]:
    """Variables for the ranks; what the user has set stays as it is."""
    paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    added = {"PYTHONPATH": os.pathsep.join(paths)}
    if "OMP_NUM_THREADS" not in env:
        added["OMP_NUM_THREADS"] = str(max(1, usable_cores() // ranks))
    if "OMP_WAIT_POLICY" not in env:
        # Threads that spin while they wait for each other make a step several times as long as soon
        # as another program wants a core.
        added["OMP_WAIT_POLICY"] = "PASSIVE"
    if not accelerators and "DS_ACCELERATOR" not in env:
        # Otherwise DeepSpeed probes for devices, and says so, in every process.
        added["DS_ACCELERATOR"] = "cpu"
    return added


def _refuse_several_hosts(launch: LaunchArgs) -> None:
    asked = {
        "include": launch.include is not None,
        "exclude": launch.exclude is not None,
        "force_multi": launch.force_multi,
        "deepspeed_mpi": launch.deepspeed_mpi,
        "deepspeed_slurm": launch.deepspeed_slurm,
        f"num_nodes: {launch.num_nodes}": launch.num_nodes > 1,
    }
    for key, is_asked in asked.items():
        if is_asked:
            raise LaunchError(f"{key} is for starts on several hosts, {_ONE_HOST}")


_ONE_HOST = (
    "which deepy.py cannot do yet\n"
    "  to do: take it out to run on this host, or start train.py on every host with torchrun or srun"
)


def _one_host(launch: LaunchArgs) -> Host | None:
    """The hostfile's only host, which must be this one; None without a hostfile."""
    if launch.hostfile is None:
        return None
    hosts = read_hostfile(launch.hostfile)
    if launch.num_nodes > 0:
        hosts = hosts[: launch.num_nodes]
    if len(hosts) > 1:
        raise LaunchError(f"hostfile: {launch.hostfile} names {len(hosts)} hosts, {_ONE_HOST}")
    if not hosts[0].is_this_host():
        raise LaunchError(
            f"hostfile: {launch.hostfile} names {hosts[0].name}, another host, {_ONE_HOST}"
        )
    return hosts[0]


def _rank_count(launch: LaunchArgs, host: Host | None, accelerators: int) -> int:
    ranks = launch.num_gpus or (host.slots if host else None) or accelerators or 1
    if accelerators and ranks > accelerators:
        what = "num_gpus" if launch.num_gpus else "slots of the hostfile"
        raise LaunchError(
            f"{what}: {ranks} processes need a GPU each, {accelerators} are visible\n"
            "  to do: lower it, or set DS_ACCELERATOR=cpu in the environment to run on the CPU"
        )
    return ranks
