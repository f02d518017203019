"""`./deepy.py`: check the configuration, then start the ranks."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from megatron.launch.command_line import Command, parse_command
from megatron.launch.machine import check_port_is_free
from megatron.launch.plan import LaunchPlan, check_configuration, plan_launch
from megatron.neox_arguments import NeoXArgs


def main(argv: Sequence[str] | None = None) -> int:
    """Run a launch command to its end.

    Raises:
        NeoXError: the command or the configuration cannot be run.
    """
    command = parse_command(sys.argv[1:] if argv is None else argv)
    args = check_configuration(command)
    plan = plan_launch(command, args)
    if command.check_only:
        sys.stdout.write(describe(command, args, plan))
        return 0
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


def describe(command: Command, args: NeoXArgs, plan: LaunchPlan) -> str:
    """What a start would do, for ``--check``."""
    files = ", ".join(file.path for file in args.files)
    lines = [f"configuration: {files} (hash {args.hash()})", f"ranks: {plan.ranks} on this host"]
    if args.batch.train_batch_size or args.batch.train_micro_batch_size_per_gpu:
        lines.append(f"batch: {args.batch_sizes(plan.ranks).explain()}")
    lines.append(f"attention: {_attention(args.model.attention_kinds)}")
    lines += args.notes
    lines.append("command: " + shlex.join(plan.command))
    lines.append("environment: " + " ".join(f"{key}={value}" for key, value in plan.env.items()))
    return "\n".join(lines) + "\n"


def _attention(kinds: Sequence[str]) -> str:
    """``global × 24``, or the kinds with their numbers."""
    return ", ".join(f"{kind} × {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
