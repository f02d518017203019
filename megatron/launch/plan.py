"""What will be started: which ranks on which hosts, of which command, with which environment."""

from __future__ import annotations

import os
import random
import shlex
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from megatron.errors import LaunchError
from megatron.launch.carried import carried_variables
from megatron.launch.command_line import Command, meant_script
from megatron.launch.hosts import ANY_HOST, LOCAL, Share, plan_hosts
from megatron.launch.machine import accelerator_count, is_this_host, usable_cores
from megatron.launch.slurm import slurm_options
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import told_where
from megatron.neox_arguments.payload import VARIABLE, payload_of
from megatron.neox_arguments.sections import LaunchArgs
from megatron.ranks import FIRST_PORT, HOSTS_VARIABLE, PORTS
from megatron.runtime.before_torch import variables_for_torch
from megatron.runtime.ports import port_problem

ROOT = Path(__file__).resolve().parents[2]
# Programs that take a batch of the size that the configuration says. The others only need the layout.
_TRAINING_SCRIPT = "train.py"
# What tells a process which rank it is, and where it meets the others.
_PLACE: Final = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK"}
    | {"GROUP_RANK", "CROSS_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
_OF_ONE_HOST: Final = {
    "pdsh": frozenset({"OMP_NUM_THREADS", "DS_ACCELERATOR"}),
    **dict.fromkeys(
        ("openmpi", "mpich", "impi", "mvapich", "slurm"), frozenset({"DS_ACCELERATOR"})
    ),
}


@dataclass(frozen=True)
class LaunchPlan:
    """Everything about a start.

    Attributes:
        launcher: ``local`` on this host alone, else the configuration's ``launcher``.
        hosts: hosts in the order of their node ranks, with the processes of each.
        command: program and arguments of each process.
        env: variables to set for them; on this host beside this process's own.
        address: the address at which they meet; empty where Slurm is still to choose the hosts.
        port: the port at which they meet; None finds a free one.
        launcher_args: the user's own arguments for the launcher.
        cwd: folder in which they start, on every host.
        run_id: a name that no other start has.
        asks: SSH may ask the user something.
        slurm: more options of ``srun``.
        meets: the agents of pdsh meet before they start anything; the doctor's probes have to speak where
            that fails, and each host has one.
        told_status: a status with which a process ends that has said all: nobody need say it again.
    """

    hosts: tuple[Share, ...]
    command: tuple[str, ...]
    env: Mapping[str, str]
    address: str
    port: int | None
    launcher: str = LOCAL
    launcher_args: tuple[str, ...] = ()
    cwd: str = "."
    run_id: str = ""
    asks: bool = False
    slurm: tuple[str, ...] = ()
    meets: bool = True
    told_status: int = 0

    @property
    def ranks(self) -> int:
        """Number of processes on all hosts."""
        return sum(share.ranks for share in self.hosts)

    def first_rank(self, node: int) -> int:
        """Rank of the first process of a host."""
        return sum(share.ranks for share in self.hosts[:node])


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
    with told_where(args, "hostfile"):
        hosts, launcher = plan_hosts(args.launch, env, accelerator_count(env))
    ranks = sum(share.ranks for share in hosts)
    if script.name == _TRAINING_SCRIPT:
        check_configuration(command, ranks)  # again, now that it is known how many there are
    return plan_start(args, rank_command(command, args, script), hosts, launcher, env)


def rank_command(command: Command, args: NeoXArgs, script: Path) -> tuple[str, ...]:
    """Program and arguments of each rank."""
    return (sys.executable, "-u", str(script), *script_arguments(command, args))


def script_arguments(command: Command, args: NeoXArgs) -> list[str]:
    """The arguments of a program that reads the same configuration again, by the files that were found."""
    names = [file.path for file in args.files]
    extra = names.pop() if command.deepspeed_config is not None else None
    return command.script_arguments(names, extra)


def plan_start(
    args: NeoXArgs,
    program: tuple[str, ...],
    hosts: tuple[Share, ...],
    launcher: str,
    env: Mapping[str, str],
) -> LaunchPlan:
    """How ``program`` is started as the ranks of these hosts.

    Raises:
        LaunchError: the launcher cannot do that.
    """
    launch = args.launch
    most = max(share.ranks for share in hosts)
    added = rank_environment(env, most, accelerator_count(env)) | {VARIABLE: payload_of(args)}
    plan = LaunchPlan(
        hosts=hosts,
        command=program,
        env=added,
        address=launch.master_addr or "127.0.0.1",
        port=launch.master_port,
        cwd=os.getcwd(),
        run_id=uuid.uuid4().hex[:12],
    )
    if launcher == LOCAL:
        return plan
    carried = carried_variables(env, launch.launch_env, Path.home(), Path.cwd())
    # What has been found out about this host need not hold for the others: their agents look
    # themselves, and without an agent the ranks do.
    added = {name: value for name, value in added.items() if name not in _OF_ONE_HOST[launcher]}
    added = {**carried, **added}
    if hosts[0].host != ANY_HOST:
        added[HOSTS_VARIABLE] = ",".join(share.host for share in hosts)
    plan = replace(
        plan,
        launcher=launcher,
        env=added,
        address=_meeting_address(launch, hosts),
        launcher_args=tuple(shlex.split(launch.launcher_args or "")),
        asks=launch.no_ssh_check,
        slurm=slurm_options(launch, env, most),
    )
    if launcher != "pdsh":
        _check_for_mpi_and_slurm(plan)
        plan = replace(plan, port=plan.port or _probably_free_port(hosts[0].host))
    return plan


def find_script(name: str) -> Path:
    """The program to run: here, else beside `deepy.py`.

    Raises:
        LaunchError: there is none.
    """
    for candidate in (Path(name), ROOT / name):
        if candidate.is_file():
            return candidate
    meant = meant_script(name)
    hint = f"; did you mean {meant}?" if meant else ""
    raise LaunchError(f"command line: no such script: {name} (looked here and in {ROOT}){hint}")


def rank_environment(env: Mapping[str, str], ranks: int, accelerators: int) -> dict[str, str]:
    """Variables for the ranks; what the user has set stays as it is."""
    paths = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    added = {"PYTHONPATH": os.pathsep.join(paths)}
    if "OMP_NUM_THREADS" not in env:
        added["OMP_NUM_THREADS"] = str(max(1, usable_cores() // ranks))
    added |= variables_for_torch(env)
    if not accelerators and "DS_ACCELERATOR" not in env:
        # Otherwise DeepSpeed probes for devices, and says so, in every process.
        added["DS_ACCELERATOR"] = "cpu"
    return added


def without_place(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without what a shell, a job's script or another launcher may have left in it about ranks."""
    return {name: value for name, value in env.items() if name not in _PLACE}


def environment_of_one_rank(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for a process that is a whole run, whatever else is in it."""
    return {**without_place(env), "WORLD_SIZE": "1"}


def _check_for_mpi_and_slurm(plan: LaunchPlan) -> None:
    for share in plan.hosts:
        if share.devices is not None:
            raise LaunchError(
                f"include, exclude: {plan.launcher} starts ranks on whole hosts; {share.host} is cut to the "
                f"devices {', '.join(map(str, share.devices))}\n"
                "  to do: use launcher: pdsh, or set CUDA_VISIBLE_DEVICES on that host"
            )
    counts = {share.ranks for share in plan.hosts}
    if len(counts) > 1 and plan.launcher != "openmpi":
        raise LaunchError(
            f"hostfile: {plan.launcher} starts equally many ranks on each host, found "
            f"{', '.join(f'{share.host} {share.ranks}' for share in plan.hosts)}\n"
            "  to do: make the slots equal, set num_gpus, or use launcher: pdsh"
        )


def _meeting_address(launch: LaunchArgs, hosts: tuple[Share, ...]) -> str:
    """Where the ranks meet: on the first host."""
    if launch.master_addr is None and hosts[0].host == ANY_HOST:
        return ""
    address = launch.master_addr or hosts[0].host.rpartition("@")[2]
    if len(hosts) > 1 and (address == "localhost" or address.startswith("127.")):
        raise LaunchError(
            f"master_addr: {address} is another machine on each host\n"
            "  to do: set master_addr to an address of the first host that the others can reach, or give "
            "it such a name in the hostfile"
        )
    return address


def _probably_free_port(host: str) -> int:
    """A port for ranks that meet on ``host``, which can be asked only if it is this one."""
    ports, is_here = random.SystemRandom(), is_this_host(host)
    while True:
        port = FIRST_PORT + ports.randrange(PORTS)
        if not is_here or port_problem(port) is None:
            return port
