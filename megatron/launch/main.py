"""`./deepy.py`: check the configuration, then start the ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from megatron.errors import LaunchError
from megatron.launch.command_line import parse_command
from megatron.launch.dry_run import dry_run_page
from megatron.launch.hosts import LOCAL
from megatron.launch.machine import accelerator_count, check_port_is_free
from megatron.launch.plan import (
    LaunchPlan,
    check_configuration,
    environment_of_one_rank,
    find_script,
    plan_launch,
    rank_command,
    rank_environment,
)
from megatron.launch.remote import run_remote
from megatron.ranks import adopt_rank_variables
from megatron.runtime.before_torch import prepare_for_torch
from megatron.runtime.signals import loading


def main(argv: Sequence[str] | None = None) -> int:
    """Run a launch command to its end.

    Raises:
        NeoXError: the command or the configuration cannot be run.
    """
    adopt_rank_variables()
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
    if is_rank(os.environ):
        # A scheduler has started this program as often as there are ranks: each becomes its rank.
        if command.dry_run:
            raise LaunchError(
                f"--dry-run: this process is rank {os.environ['RANK']} of "
                f"{os.environ['WORLD_SIZE']} already, "
                "and its scheduler has planned the start\n"
                "  to do: run it outside of srun, mpirun and torchrun",
                everywhere=True,
            )
        become_rank(rank_command(command, args, find_script(command.script)))
    plan = plan_launch(command, args)
    if command.dry_run:
        sys.stdout.write(dry_run_page(plan, accelerators=accelerator_count() > 0))
        sys.stdout.flush()
        return 0
    if plan.launcher != LOCAL:
        return run_remote(plan)
    if plan.port is not None:
        check_port_is_free(plan.port)
    if plan.ranks == 1:
        run_in_place(plan)
    prepare_for_torch()
    # torch costs about two seconds to import: not before everything else is known to be right.
    with loading():
        from megatron.launch.local import run_local  # noqa: PLC0415

    status = run_local(plan)
    # Taking torch's modules apart at the end of the interpreter costs seconds and does nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_in_place(plan: LaunchPlan) -> NoReturn:
    """A run of one rank needs no launcher beside it: this process becomes the rank. Does not return."""
    env = {**environment_of_one_rank(os.environ), **plan.env, "MASTER_ADDR": plan.address}
    if plan.port is not None:
        env["MASTER_PORT"] = str(plan.port)
    _become(plan.command, env)


def is_rank(env: Mapping[str, str]) -> bool:
    """Whether this process is one of several that a scheduler has started (``srun ./deepy.py …``)."""
    size = env.get("WORLD_SIZE", "")
    return "RANK" in env and size.isdigit() and int(size) > 1


def become_rank(program: Sequence[str]) -> NoReturn:
    """Become ``program``, as the rank that the environment says. Does not return."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    ranks = int(local) if local.isdigit() and int(local) else 1
    _become(program, {**os.environ, **rank_environment(os.environ, ranks, accelerator_count())})


def _become(program: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Go on as another program in this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program[0], list(program), env)
