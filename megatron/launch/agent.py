"""One process on each host of a start by pdsh: it starts the ranks there, and ends with them.

``python -m megatron.launch.agent FOLDER PORT``, which only ``deepy.py`` calls. Its standard input is the
other end of SSH's: when that closes, the start is gone, and the ranks are asked to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatron.errors import LaunchError, run_door
from megatron.launch.job import NOTHING_STARTED, asked_to_stop, leave, take_job
from megatron.launch.local import run_local
from megatron.launch.machine import accelerator_count
from megatron.launch.plan import LaunchPlan, rank_environment
from megatron.runtime.parent import LAUNCHER_PID_VARIABLE
from megatron.runtime.signals import exit_status

# Seconds that ranks get to save when the start has gone, before they are killed.
_TO_SAVE = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run this host's ranks to their end.

    Returns:
        The status of the first one to fail; ``NOTHING_STARTED`` where there could be none.
    """
    folder_name, port = sys.argv[1:] if argv is None else argv
    folder = Path(folder_name)
    try:
        plan, node = take_job(folder, int(port))
        early = asked_to_stop(folder)
        if early is not None:  # while this program was loading
            return exit_status(-early)
        os.environ.update(plan.env)
        plan = replace(plan, env=_environment_here(plan, node))
        threading.Thread(target=_follow_start, name="start", daemon=True).start()
        return run_local(plan, node) if plan.meets else _run_alone(plan, node)
    except LaunchError as error:
        sys.stderr.write(f"error: {error}\n")
        return NOTHING_STARTED
    finally:
        leave(folder)


def _run_alone(plan: LaunchPlan, node: int) -> int:
    """The one process of this host, which finds the others itself; it ends when this one does."""
    variables = {
        "RANK": str(node),
        "WORLD_SIZE": str(len(plan.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(node),
        "MASTER_ADDR": plan.address,
        "MASTER_PORT": str(plan.port),
        LAUNCHER_PID_VARIABLE: str(os.getpid()),
    }
    env = {**os.environ, **plan.env, **variables}
    done = subprocess.run(plan.command, env=env, stdin=subprocess.DEVNULL, check=False)
    return exit_status(done.returncode)


def _environment_here(plan: LaunchPlan, node: int) -> dict[str, str]:
    """What the ranks of this host need: another host may have other devices and cores.

    Raises:
        LaunchError: more ranks than devices.
    """
    share = plan.hosts[node]
    if share.devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, share.devices))
    present = accelerator_count()
    if present and share.ranks > present:
        raise LaunchError(
            f"host {share.host}: {share.ranks} processes need a GPU each, {present} are visible\n"
            "  to do: lower its slots in the hostfile, or num_gpus"
        )
    return {**plan.env, **rank_environment(os.environ, share.ranks, present)}


def _follow_start() -> None:
    """End with the start: its end closes this process's standard input."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_TO_SAVE)
    for _ in range(2):  # the second one kills
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)


if __name__ == "__main__":
    run_door(main)
