"""What the start tells the agent of another host: one file, which nobody else can read.

The environment of the ranks is in it, and with it the user's secrets. So it goes to the host through
SSH's standard input, never as an argument, into a folder of mode 700, and is removed once it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from megatron.errors import LaunchError
from megatron.launch.hosts import Share
from megatron.launch.plan import LaunchPlan

JOB: Final = "job.json"
PID: Final = "pid"
# The agent's status where it has said why it starts nothing: no rank elsewhere has anything to save.
NOTHING_STARTED: Final = 119
STOP: Final = "stop"  # the signal by which the start was asked to end, by name


def folder_of(run_id: str, node: int | str) -> str:
    """The agent's folder, as a shell on that host understands it."""
    return f'"${{TMPDIR:-/tmp}}/deepy-{run_id}-{node}"'


def job_text(plan: LaunchPlan, node: int) -> str:
    """The file for the agent of one host."""
    job = {
        "node": node,
        "hosts": [asdict(share) for share in plan.hosts],
        "command": plan.command,
        "env": dict(plan.env),
        "address": plan.address,
        "run_id": plan.run_id,
        "cwd": plan.cwd,
        "meets": plan.meets,
    }
    return json.dumps(job)


def take_job(folder: Path, port: int) -> tuple[LaunchPlan, int]:
    """The plan and this host's number; leaves this process's id where the start finds it.

    Raises:
        LaunchError: the file is not there.
    """
    path = folder / JOB
    try:
        job: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LaunchError(
            f"{path}: the start has left no file here: this program is deepy.py's own"
        ) from None
    path.unlink()
    (folder / PID).write_text(f"{os.getpid()}\n")
    hosts = tuple(
        Share(
            each["host"],
            each["ranks"],
            None if each["devices"] is None else tuple(each["devices"]),
        )
        for each in job["hosts"]
    )
    plan = LaunchPlan(
        hosts=hosts,
        command=tuple(job["command"]),
        env=job["env"],
        address=job["address"],
        port=port,
        launcher="pdsh",
        cwd=job["cwd"],
        run_id=job["run_id"],
        meets=bool(job["meets"]),
    )
    return plan, int(job["node"])


def stop_text(node_folder: str, name: str) -> str:
    """A shell's line that sends the agent a signal, or leaves it word where it still loads its programs.

    The word comes first and the agent looks for it last: one of the two always finds the other.
    """
    return (
        f"cd {node_folder} 2>/dev/null && echo {name} > {STOP} && test -f {PID} && "
        f"kill -{name} $(cat {PID}) 2>/dev/null"
    )


def asked_to_stop(folder: Path) -> signal.Signals | None:
    """The signal that the agent has been sent before :func:`take_job`; None where there was none."""
    try:
        name = (folder / STOP).read_text().strip()
    except FileNotFoundError:
        return None
    return signal.Signals[f"SIG{name}"] if name else signal.SIGTERM  # being written


def leave(folder: Path) -> None:
    """Remove the agent's folder."""
    shutil.rmtree(folder, ignore_errors=True)
