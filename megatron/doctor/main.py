"""``./deepy.py doctor [--json] config.yml``: read the command line, start a probe on each host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from megatron.launch.command_line import parse_command
from megatron.launch.machine import accelerator_count
from megatron.launch.plan import ROOT, check_configuration, rank_environment

COMMAND = "doctor"
_MODULE = "megatron.doctor.probe"


def main(argv: Sequence[str]) -> int:
    """Probe the hosts of a configuration. ``argv``: what stands behind ``doctor``.

    Returns:
        0, or 2 where a run would not do what it should.

    Raises:
        NeoXError: command line or configuration cannot be read.
    """
    own = [argument for argument in argv if argument != "--json"]
    command = parse_command(["--check", *own])
    args = check_configuration(command, may_be_a_part=True)
    names = [file.path for file in args.files]
    extra = names.pop() if command.deepspeed_config is not None else None
    shown = ["--json"] if len(own) < len(argv) else []
    probe = [sys.executable, "-u", "-m", _MODULE, *shown, *command.script_arguments(names, extra)]
    ranks = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
    mine = {key: value for key, value in os.environ.items() if key not in ranks}
    env = mine | rank_environment(mine, 1, accelerator_count())
    return subprocess.run(probe, env=env, cwd=ROOT if not names else None, check=False).returncode
