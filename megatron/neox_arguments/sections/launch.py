"""How `deepy.py` starts the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import Ignored, PositiveInt, Range, Refused

_ONE_HOST = Ignored("starts are on one host for now")


@dataclass(frozen=True)
class LaunchArgs:
    """Hosts, processes and ports. Starts on several hosts are refused for now."""

    hostfile: str | None = None
    """File with one `name slots=N` per line. A file that is named but missing stops the start."""

    include: str | None = None
    """Hosts and devices to use, of those in the hostfile. Refused for now."""

    exclude: str | None = None
    """Hosts and devices to leave out. Refused for now."""

    num_nodes: Annotated[int, Range(low=-1)] = -1
    """Hosts to use of the hostfile; -1 is all of them. Only one for now."""

    num_gpus: PositiveInt | None = None
    """Processes per host, one per device. On a machine without GPUs: processes on the CPU. Default: the
    visible GPUs, else 1."""

    master_port: Annotated[int, Range(low=1, high=65535)] | None = None
    """Port at which the ranks meet. Default: a free one is found."""

    master_addr: str | None = None
    """Address at which the ranks meet. Default: this host."""

    launcher: Annotated[
        Literal["pdsh", "openmpi", "mvapich", "slurm", "mpich", "impi"], _ONE_HOST
    ] = "pdsh"
    """What starts processes on other hosts; has a meaning with more than one."""

    no_ssh_check: Annotated[bool, _ONE_HOST] = False
    """Whether hosts are used without a look at them first."""

    comment: Annotated[str | None, _ONE_HOST] = None
    """Comment on a job that goes to Slurm."""

    account: Annotated[str | None, _ONE_HOST] = None
    """Account that a job of Slurm's is charged to."""

    force_multi: bool = False
    """Start one host as if it were several. Refused for now."""

    deepspeed_mpi: bool = False
    """Start through MPI. Refused by `deepy.py` for now; `train.py` itself runs under any launcher that
    sets RANK."""

    deepspeed_slurm: bool = False
    """Start through Slurm. Refused by `deepy.py` for now; `train.py` itself runs under any launcher that
    sets RANK."""

    autotuning_run: Annotated[str | None, Refused("not supported yet: take it out")] = None
    """Mode of DeepSpeed's search for settings, `tune` or `run`."""
