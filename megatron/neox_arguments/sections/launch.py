"""How `deepy.py` starts the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import PositiveInt, Range, Refused


@dataclass(frozen=True)
class LaunchArgs:
    """Hosts, processes and ports; docs/cluster.md has an example for each launcher."""

    hostfile: str | None = None
    """File with one `name slots=N` per line. A file that is named but missing stops the start. Default:
    the one that the environment's `DLTS_HOSTFILE` names, else `/job/hostfile` where there is one."""

    include: str | None = None
    """Hosts of the hostfile to use, and their devices: `node1@node2:0,2` is all of node1 and two devices
    of node2."""

    exclude: str | None = None
    """Hosts of the hostfile to leave out, or some of their devices, written as `include` is."""

    num_nodes: Annotated[int, Range(low=-1)] = -1
    """Hosts to use, the first ones of the hostfile or of Slurm's allocation; -1 is all of them."""

    num_gpus: PositiveInt | None = None
    """Processes per host, one per device. On a machine without GPUs: processes on the CPU. Default: the
    host's slots, else the visible GPUs, else 1."""

    master_port: Annotated[int, Range(low=1, high=65535)] | None = None
    """Port at which the ranks meet. Default: a free one is found."""

    master_addr: str | None = None
    """Address at which the ranks meet: of the first host. Default: its name in the hostfile; this host
    where there is one only."""

    launcher: Literal["pdsh", "openmpi", "mvapich", "slurm", "mpich", "impi"] = "pdsh"
    """What starts processes on other hosts; has a meaning with more than one. `pdsh` goes over SSH and
    starts one process on each host, which starts its ranks; the others start the ranks themselves."""

    launcher_args: str | None = None
    """More arguments for `pdsh`, `mpirun` or `srun`, written as in a shell."""

    launch_env: tuple[str, ...] | None = None
    """Names of variables of the environment that the ranks on other hosts need too, beside those that
    are carried anyway (docs/cluster.md lists them). A trailing `*` means all that begin so."""

    no_ssh_check: bool = False
    """Whether SSH may ask (for a password, say) and take its time: without it, all hosts must answer
    within seconds before anything starts."""

    comment: str | None = None
    """Comment on a job that goes to Slurm."""

    account: str | None = None
    """Account that a job of Slurm's is charged to."""

    force_multi: bool = False
    """Start one host as if it were several: through the launcher."""

    deepspeed_mpi: bool = False
    """Start through MPI: the same as `launcher: openmpi`, where `launcher` names no other MPI."""

    deepspeed_slurm: bool = False
    """Start through Slurm: the same as `launcher: slurm`."""

    autotuning_run: Annotated[str | None, Refused("not supported yet: take it out")] = None
    """Mode of DeepSpeed's search for settings, `tune` or `run`."""
