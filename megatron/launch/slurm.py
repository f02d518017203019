"""What `srun` has to be told, beside hosts and ranks, because of the job that the start stands in."""

from __future__ import annotations

from collections.abc import Mapping

from megatron.neox_arguments.sections import LaunchArgs
from megatron.ranks import counts_of_nodes


def slurm_options(launch: LaunchArgs, env: Mapping[str, str], ranks: int) -> tuple[str, ...]:
    """Options of `srun` for ``ranks`` tasks on each host."""
    named = {"--account": launch.account, "--comment": launch.comment}
    options = [f"{name}={value}" for name, value in named.items() if value is not None]
    if env.get("SLURM_STEP_ID"):
        # Inside another step (`srun --pty bash`), which has the job's processors: without this the new
        # one waits for them for ever.
        options.append("--overlap")
    cores = _cores(env, ranks)
    if cores is not None:
        options.append(f"--cpus-per-task={cores}")
    return tuple(options)


def slurm_tasks(env: Mapping[str, str]) -> int | None:
    """Tasks of each host as the job was asked for, if it said."""
    text = env.get("SLURM_NTASKS_PER_NODE", "")
    return int(text) if text.isdigit() and int(text) > 1 else None


def _cores(env: Mapping[str, str], ranks: int) -> int | None:
    """The processors of each task, where the job was asked for a number of them: since Slurm 22.05 srun does
    not take that over by itself, and would bind each rank with all its threads to one processor."""
    asked = env.get("SLURM_CPUS_PER_TASK", "")
    of_hosts = counts_of_nodes("SLURM_JOB_CPUS_PER_NODE", env)
    if not asked.isdigit() or not of_hosts:
        return None
    # A job of one task per host with many processors is right for torchrun: its ranks share them.
    return max(1, min(int(asked), min(of_hosts) // ranks))
