#!/usr/bin/env python
"""How long a start takes, and where the time goes: `startup.py [--runs 3] [config…] [--set k=v]`.

Starts `./deepy.py train.py` with a warm index, stops it after the first step, and prints the moments
at which its log lines come, as medians over several runs. Run it once more if the index was cold.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/quickstart.yml"

# What a log line begins with (after its time), and what has just been done when it comes.
MOMENTS = {
    "no checkpoint": "launcher and ranks have started: configuration, imports, process group",
    "this run": "data opened, model and engine built",
    "step ": "first step done",
}
# The second word of a log line's time ends here.
TIME_WIDTH = len("2026-01-31 12:00:00 ")


def one_start(arguments: list[str], empty: str) -> dict[str, float]:
    """Seconds from the command to each of the moments, and to its end."""
    command = [sys.executable, "deepy.py", "train.py", *arguments]
    for setting in (
        *("exit_interval=1", "log_interval=1", "tensorboard_dir=null", "save=null"),
        f"load={empty}",  # nothing is there, which is said: a moment to look for
    ):
        command += ["--set", setting]
    start = time.perf_counter()
    seen: dict[str, float] = {}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        lines = []
        for line in run.stdout:
            lines.append(line)
            for beginning in MOMENTS:
                if line[TIME_WIDTH:].startswith(beginning):
                    seen.setdefault(beginning, time.perf_counter() - start)
    if run.returncode or len(seen) < len(MOMENTS):
        sys.exit("the run did not get through its first step:\n" + "".join(lines[-20:]))
    return seen | {"end": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="*", default=[CONFIG])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="K=V")
    asked = parser.parse_args()
    arguments = list(asked.config)
    for override in asked.overrides:
        arguments += ["--set", override]
    runs = [one_start(arguments, f"/nonexistent/{number}") for number in range(asked.runs)]
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    before = 0.0
    print(f"medians of {len(runs)} starts, seconds")
    for beginning, meaning in MOMENTS.items():
        at = median[beginning]
        print(f"  {at:6.1f}  (+{at - before:4.1f})  {meaning}")
        before = at
    print(f"  {median['end']:6.1f}  (+{median['end'] - before:4.1f})  all processes ended")


if __name__ == "__main__":
    main()
