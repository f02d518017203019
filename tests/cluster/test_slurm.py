"""Protects that a run starts through Slurm in all the ways that the pages name, and stops when Slurm asks."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_runs import PATIENCE, TRAIN
from tests.support.cluster_slurm import Slurm
from tests.support.cluster_starts import DEEPY, SECRET, folder_for_run, is_as_on_one_host, watched
from tests.support.doors import ROOT
from tests.support.tiny import metrics

pytestmark = pytest.mark.cluster

CONFIG = ("--config-file", "run.yml")


def batch_script(page: str, command: str) -> str:
    """The batch script that a page shows, for two ranks without GPUs on each host, with ``command``'s run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    scripts = re.findall(r"```text\n(#!/bin/bash\n#SBATCH.*?)```", text, flags=re.S)
    assert len(scripts) == 1
    shown = ("--ntasks-per-node=8 --gpus-per-node=8", "train.py -d configs 125M local_setup slurm")
    assert all(words in scripts[0] for words in shown), scripts[0]
    return scripts[0].replace(shown[0], "--ntasks-per-node=2").replace(shown[1], command)


def write_script(folder: Path, page: str, command: str = "train.py run.yml") -> None:
    """``job.sh``, and beside it the project's program as people have it."""
    (folder / "deepy.py").symlink_to(DEEPY)
    (folder / "job.sh").write_text(batch_script(page, command))


def wait_for(what: Callable[[], object], folder: Path, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        said = "\n".join(path.read_text() for path in folder.glob("*.out"))
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def test_srun_starts_the_ranks(cluster: Cluster, slurm: Slurm, one_host: Path) -> None:
    folder = folder_for_run(cluster, "srun")
    command = ["srun", "--nodes=2", "--ntasks-per-node=2", "--kill-on-bad-exit=1"]
    done = slurm.run([*command, "python", TRAIN, *CONFIG], cwd=folder, timeout=PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert cluster.left_after(10) == {}


def test_a_batch_script(cluster: Cluster, slurm: Slurm, one_host: Path) -> None:
    folder = folder_for_run(cluster, "sbatch", launcher_args="--label")
    write_script(folder, "docs/cluster.md")
    with watched(cluster) as seen:
        command = ["sbatch", "--wait", "--output=job.out", "job.sh"]
        done = slurm.run(command, cwd=folder, env=SECRET, timeout=PATIENCE)
    said = (folder / "job.out").read_text()
    assert done.status == 0, said
    is_as_on_one_host(folder, one_host)
    assert re.search(r"^0: ", said, flags=re.M)  # what launcher_args has asked srun for
    assert seen.told >= {"node1:0", "node1:1", "node2:2", "node2:3"}
    assert seen.shown == set()
    assert cluster.left_after(10) == {}


def test_each_task_of_an_srun_becomes_a_rank(
    cluster: Cluster, slurm: Slurm, one_host: Path
) -> None:
    """No task starts a launcher of its own, whatever the configuration says; Slurm places three and one."""
    folder = folder_for_run(cluster, "srun-deepy", launcher="slurm")
    command = ["srun", "-n4", "-N2", "python", DEEPY, "train.py", "run.yml"]
    with watched(cluster) as seen:
        done = slurm.run(command, cwd=folder, env=SECRET, timeout=PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert seen.told >= {"node1:0", "node1:1", "node1:2", "node2:3"}
    assert cluster.left_after(10) == {}


def test_deepy_asks_slurm_for_hosts(cluster: Cluster, slurm: Slurm, one_host: Path) -> None:
    """Outside of a job."""
    keys = {"launcher": "slurm", "num_nodes": 2, "num_gpus": 2, "account": "ours", "comment": "a b"}
    folder = folder_for_run(cluster, "asked-for", **keys)
    job = slurm.start([sys.executable, DEEPY, "train.py", "run.yml"], cwd=folder, env=SECRET)
    wait_for(slurm.jobs, folder)
    shown = slurm.run(["scontrol", "show", "job", *slurm.jobs()]).out
    assert "Account=ours" in shown
    assert "Comment=a b" in shown
    done = job.wait(PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(folder, one_host)
    assert cluster.left_after(10) == {}


def test_a_start_from_inside_a_step(cluster: Cluster, slurm: Slurm) -> None:
    """`srun --pty bash`, and deepy.py there: its step must not wait for the shell's, nor place as it did."""
    folder = folder_for_run(cluster, "inside")
    (folder / "say.py").write_text(
        "import os, socket; print(*map(os.environ.get, ('SLURM_PROCID', 'SLURM_CPUS_PER_TASK')), "
        "socket.gethostname())"
    )
    allocation = ["salloc", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2"]
    step = ["srun", "--nodes=1", "--ntasks=1"]
    start = [sys.executable, DEEPY, "--launcher", "slurm", "say.py", "run.yml"]
    done = slurm.run([*allocation, *step, *start], cwd=folder, env=SECRET, timeout=30)
    assert done.status == 0, done.all
    lines = [line for line in done.out.splitlines() if "node" in line]
    assert sorted(lines) == ["0 2 node1", "1 2 node1", "2 2 node2", "3 2 node2"]


def test_a_job_that_is_stopped_saves_and_goes_on(cluster: Cluster, slurm: Slurm) -> None:
    folder = folder_for_run(cluster, "stopped", train_iters=100_000, eval_interval=100_000)
    checkpoints = folder / "checkpoints"
    write_script(folder, "configs/README.md")

    def last_step() -> int:
        path = checkpoints / "metrics.jsonl"
        return (
            int(metrics(checkpoints)[-1]["iteration"]) if path.exists() and path.read_text() else 0
        )

    def submit_and_stop(name: str, *how: str) -> str:
        """Submit the script, stop the job in mid-run, and return the state in which it has ended."""
        before = last_step()
        command = ["sbatch", "--parsable", f"--output={name}.out", "job.sh"]
        job = slurm.run(command, cwd=folder, env=SECRET).out.strip()
        wait_for(lambda: last_step() > before + 2, folder)
        slurm.run(["scancel", *how, job])
        wait_for(lambda: not slurm.jobs(), folder)
        shown = slurm.run(["scontrol", "show", "job", job]).out
        assert (checkpoints / "latest").read_text() == f"global_step{last_step()}"
        state = re.search(r"JobState=(\w+)", shown)
        assert state is not None
        return state[1]

    # What `--signal=B:TERM@300` sends five minutes before the time is over.
    assert submit_and_stop("warned", "--batch", "--signal=TERM") == "COMPLETED"
    first = last_step()
    assert submit_and_stop("cancelled") == "CANCELLED"
    steps = [row["iteration"] for row in metrics(checkpoints) if "train/lm_loss" in row]
    assert steps == list(range(1, last_step() + 1))
    assert last_step() > first
    assert cluster.left_after(10) == {}
