"""`--dry-run`: what would be started where, as a page; nothing is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from megatron.launch.commands import launcher_command, launcher_environment
from megatron.launch.hosts import LOCAL
from megatron.launch.pdsh import pdsh_command
from megatron.launch.plan import LaunchPlan
from megatron.neox_arguments.payload import VARIABLE

_SHOWN = 90  # letters of a value
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


def dry_run_page(plan: LaunchPlan, *, accelerators: bool) -> str:
    """Host × rank × device, the commands, and the environment.

    Args:
        plan: the start.
        accelerators: whether the ranks get a GPU each, as far as it can be told here.
    """
    return "\n".join(_lines(plan, accelerators)) + "\n"


def _lines(plan: LaunchPlan, accelerators: bool) -> Iterator[str]:
    many = "host" if len(plan.hosts) == 1 else "hosts"
    yield f"{plan.ranks} ranks on {len(plan.hosts)} {many}, launcher {plan.launcher}"
    port = plan.port if plan.port is not None else "a free port"
    yield f"they meet at {plan.address or 'the first host'}:{port}"
    width = max(4, *(len(share.host) for share in plan.hosts))
    yield f"  {'host':{width}}  rank  local rank  device"
    for node, share in enumerate(plan.hosts):
        for local in range(share.ranks):
            device = (
                "cpu" if not accelerators else str((share.devices or range(share.ranks))[local])
            )
            rank = plan.first_rank(node) + local
            yield f"  {share.host:{width}}  {rank:4}  {local:10}  {device:>6}"
    if plan.launcher == "pdsh":
        yield f"launcher  {shlex.join(pdsh_command(plan))}"
        yield f"each rank  {shlex.join(plan.command)}"
    elif plan.launcher == LOCAL:
        yield f"command  {shlex.join(plan.command)}"
    else:
        yield f"command  {shlex.join(launcher_command(plan))}"
    yield f"folder  {plan.cwd}"
    yield "environment"
    env = plan.env if plan.launcher in (LOCAL, "pdsh") else launcher_environment(plan)
    yield from (f"  {name}={shown_value(name, value)}" for name, value in sorted(env.items()))


def shown_value(name: str, value: str) -> str:
    """The value of a variable for people: short, and no secret."""
    if name == VARIABLE:
        return "(the checked configuration)"
    if any(part in name.upper() for part in _SECRET):
        return "(not shown)"
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
