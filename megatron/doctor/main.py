"""``./deepy.py doctor [--json] config.yml``: read the command line, start a probe on each host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from megatron.doctor.page import STATUS_ERRORS
from megatron.launch.command_line import parse_command
from megatron.launch.hosts import LOCAL, plan_hosts
from megatron.launch.machine import accelerator_count
from megatron.launch.main import become_rank, is_rank
from megatron.launch.plan import (
    LaunchPlan,
    check_configuration,
    environment_of_one_rank,
    plan_start,
    script_arguments,
)
from megatron.launch.remote import run_remote
from megatron.ranks import adopt_rank_variables
from megatron.runtime.signals import exit_status

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
    command = replace(
        parse_command(["--check", *own]), own=()
    )  # a script's own are not the probe's
    args = check_configuration(command, may_be_a_part=True)
    shown = ["--json"] if len(own) < len(argv) else []
    probe = (sys.executable, "-u", "-m", _MODULE, *shown, *script_arguments(command, args))
    if is_rank(os.environ):
        become_rank(probe)
    hosts, launcher = plan_hosts(args.launch, os.environ, accelerator_count())
    most = max(share.ranks for share in hosts)
    one_each = tuple(replace(share, ranks=1, devices=None) for share in hosts)
    plan = plan_start(args, probe, one_each, launcher, os.environ)
    plan = replace(
        plan, env={**plan.env, RANKS_VARIABLE: str(most)}, meets=False, told_status=STATUS_ERRORS
    )
    return _run_here(plan) if plan.launcher == LOCAL else run_remote(plan)


def _run_here(plan: LaunchPlan) -> int:
    """The probe of this host alone."""
    env = {**environment_of_one_rank(os.environ), **plan.env}
    return exit_status(subprocess.run(plan.command, env=env, check=False).returncode)
