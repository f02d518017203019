"""What srun is told because of the job that the start stands in."""

from __future__ import annotations

import pytest

from megatron.launch.slurm import slurm_options, slurm_tasks
from megatron.neox_arguments.sections import LaunchArgs

JOB = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_CPUS_PER_NODE": "32(x2),24"}


def test_account_and_comment() -> None:
    assert slurm_options(LaunchArgs(), {}, 2) == ()
    named = LaunchArgs(account="ours", comment="a b")
    assert slurm_options(named, {}, 2) == ("--account=ours", "--comment=a b")


def test_a_step_inside_a_step_does_not_wait_for_it() -> None:
    assert slurm_options(LaunchArgs(), {"SLURM_JOB_ID": "7"}, 2) == ()
    assert slurm_options(LaunchArgs(), {"SLURM_STEP_ID": "0"}, 2) == ("--overlap",)


@pytest.mark.parametrize(("ranks", "cores"), [(1, 8), (3, 8), (4, 6), (24, 1), (30, 1)])
def test_processors_that_the_job_has_for_each_task(ranks: int, cores: int) -> None:
    assert slurm_options(LaunchArgs(), JOB, ranks) == (f"--cpus-per-task={cores}",)


def test_tasks_of_each_host() -> None:
    assert slurm_tasks({"SLURM_NTASKS_PER_NODE": "8"}) == 8
    assert slurm_tasks({"SLURM_NTASKS_PER_NODE": "1"}) is None
    assert slurm_tasks({}) is None
