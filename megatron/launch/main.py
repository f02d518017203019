"""`./deepy.py`: check the configuration, then start the ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from megatron.launch.command_line import parse_command
from megatron.launch.machine import check_port_is_free
from megatron.launch.plan import LaunchPlan, check_configuration, plan_launch


def main(argv: Sequence[str] | None = None) -> int:
    """Run a launch command to its end.

    Raises:
        NeoXError: the command or the configuration cannot be run.
    """
    command = parse_command(sys.argv[1:] if argv is None else argv)
    if command.check_only:
        # It reads token files, for which it imports numpy: a start has no use for that here.
        from megatron.launch.check import check  # noqa: PLC0415

        report = check(command)
        sys.stdout.write(report.page)
        sys.stdout.flush()
        report.raise_if_it_stops()
        return 0
    args = check_configuration(command)
    plan = plan_launch(command, args)
    if plan.port is not None:
        check_port_is_free(plan.port)
    if plan.ranks == 1:
        run_in_place(plan)
    # torch costs about two seconds to import: not before everything else is known to be right.
    from megatron.launch.local import run_local  # noqa: PLC0415

    status = run_local(plan)
    # Taking torch's modules apart at the end of the interpreter costs seconds and does nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_in_place(plan: LaunchPlan) -> None:
    """A run of one rank needs no launcher beside it: this process becomes the rank. Does not return."""
    env = {**os.environ, **plan.env, "MASTER_ADDR": plan.address}
    if plan.port is not None:
        env["MASTER_PORT"] = str(plan.port)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(plan.command[0], list(plan.command), env)
