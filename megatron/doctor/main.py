"""``./deepy.py doctor [--json] config.yml``: read the command line, start a probe on each host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from megatron.launch.command_line import parse_command
from megatron.launch.main import is_rank
from megatron.launch.plan import (
    LOCAL,
    LaunchPlan,
    check_configuration,
    plan_hosts,
    plan_start,
    script_arguments,
)
from megatron.launch.remote import run_remote
from megatron.ranks import adopt_rank_variables

_MODULE: Final = "megatron.doctor.probe"
# How many ranks a run would have on each host, for the probes.
RANKS_VARIABLE: Final = "NEOX_RANKS_PER_HOST"


def main(argv: Sequence[str]) -> int:
    """Probe the hosts that a run of a configuration would use. ``argv``: what stands behind ``doctor``.

    Started once a host by a scheduler (``srun ./deepy.py doctor …``) it becomes the probe.

    Returns:
        0, or 2 where a run would not do what it should.

    Raises:
        NeoXError: command line or configuration cannot be read, or no host can be reached.
    """
    adopt_rank_variables()
    own = [argument for argument in argv if argument != "--json"]
    command = parse_command(["--check", *own])
    args = check_configuration(command, may_be_a_part=True)
    shown = ["--json"] if len(own) < len(argv) else []
    probe = (sys.executable, "-u", "-m", _MODULE, *shown, *script_arguments(command, args))
    if is_rank(os.environ):
        os.execv(probe[0], probe)
    hosts, launcher = plan_hosts(args.launch, os.environ)
    most = max(share.ranks for share in hosts)
    one_each = tuple(replace(share, ranks=1, devices=None) for share in hosts)
    plan = plan_start(args, probe, one_each, launcher, os.environ)
    plan = replace(plan, env={**plan.env, RANKS_VARIABLE: str(most)}, meets=False)
    return _run_here(plan) if plan.launcher == LOCAL else run_remote(plan)


def _run_here(plan: LaunchPlan) -> int:
    """The probe of this host alone; no rank variables of a shell shall make it look for others."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env = {**os.environ, **plan.env, **alone}
    return subprocess.run(plan.command, env=env, check=False).returncode
