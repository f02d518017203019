"""Training runs on two hosts: ways to start them, and what they leave."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.cluster_host import Job
from tests.support.doors import ROOT, Done
from tests.support.ranks import free_port
from tests.support.tiny import tiny_config, write_tokens
from tests.support.watching import words_of

TRAIN = ROOT / "train.py"
# Longer than any of these runs takes.
PATIENCE = 150.0


def write_config(path: Path, folder: Path | str = "", **changes: Any) -> Path:
    """A configuration of a tiny run on the tokens in ``folder``, by default where it is started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(tiny_config(Path(folder), **{"train_iters": 6, "eval_iters": 1} | changes))
    )
    return path


def folder_with_tokens(cluster: Cluster, name: str) -> Path:
    """A new folder that both hosts see, with ``data/tiny`` in it."""
    folder = cluster.shared / name
    write_tokens(folder / "data" / "tiny")
    return folder


def torchrun(
    cluster: Cluster,
    *argv: str | Path,
    cwd: Path | str,
    ranks: int = 2,
    hosts: Sequence[int] = (1, 2),
    script: Path = TRAIN,
    env: Mapping[str, str] | None = None,
) -> dict[int, Job]:
    """Start ``ranks`` processes on each of ``hosts`` by a torchrun there; the jobs by host."""
    meeting = ["--master_addr", cluster.hosts[hosts[0]].name, "--master_port", str(free_port())]
    shape = ["--nnodes", str(len(hosts)), "--nproc_per_node", str(ranks)]
    launch = [sys.executable, "-m", "torch.distributed.run", *shape, *meeting]
    return {
        host: cluster.on(
            host, [*launch, "--node_rank", str(place), script, *argv], cwd=cwd, env=env
        )
        for place, host in enumerate(hosts)
    }


def ends(jobs: Mapping[int, Job], timeout: float = PATIENCE) -> dict[int, Done]:
    """How the jobs ended, within ``timeout`` seconds all together."""
    deadline = time.monotonic() + timeout
    return {host: job.wait(max(0.1, deadline - time.monotonic())) for host, job in jobs.items()}


def succeed(jobs: Mapping[int, Job], timeout: float = PATIENCE) -> str:
    """Wait for jobs that must end well; what they said."""
    done = ends(jobs, timeout)
    said = "\n".join(end.all for end in done.values())
    assert all(end.status == 0 for end in done.values()), said
    return said


def fail(jobs: Mapping[int, Job], timeout: float = PATIENCE) -> dict[int, str]:
    """Wait for jobs that must end badly, by themselves; what each host said."""
    done = ends(jobs, timeout)
    for end in done.values():
        assert end.status not in (0, -9), end.all
    return {host: end.out for host, end in done.items()}


def process_of_rank(cluster: Cluster, rank: int) -> int:
    """The process (number of this machine) that is this rank of what runs on the bench."""
    found = []
    for pid in cluster.processes():
        if f"RANK={rank}".encode() in (words_of(pid, "environ") or ()):
            found.append(pid)
    # A rank's own children, such as workers of a loader, have its variables too.
    parents = {pid: os.stat(f"/proc/{pid}").st_ctime for pid in found}
    return min(parents, key=lambda pid: (parents[pid], pid))
