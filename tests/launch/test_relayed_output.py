"""What the hosts say reaches the one who reads it, or nobody."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from typing import IO

from megatron.launch.hosts import Share
from megatron.launch.plan import LaunchPlan
from megatron.launch.remote import _Failures, _relay

PLAN = LaunchPlan(hosts=(Share("n1", 1), Share("n2", 1)), command=(), env={}, address="n1", port=1)


def relayed(text: str, plan: LaunchPlan, target: IO[str] | None = None) -> tuple[str, _Failures]:
    """What is shown of what pdsh said, and the hosts that failed."""
    shown, failures = target or io.StringIO(), _Failures(plan)
    _relay(io.StringIO(text), shown, plan, failures)
    return shown.getvalue() if isinstance(shown, io.StringIO) else "", failures


def test_a_status_that_is_told_is_not_announced() -> None:
    ended = "n1: errors\npdsh@x: n1: ssh exited with exit code 2\n"
    said, failures = relayed(ended, replace(PLAN, told_status=2))
    assert (said, failures.hosts) == ("errors\n", {"n1": 2})
    assert relayed(ended, PLAN)[0] == "errors\ndeepy.py: host n1 ended with status 2\n"
    killed, _ = relayed(ended.replace("code 2", "code 137"), replace(PLAN, told_status=2))
    assert killed == "errors\ndeepy.py: host n1 ended with status 137\n"


def test_a_reader_that_has_gone_stops_nobody() -> None:
    """All is still taken, of hosts that would else wait for it, and nothing is raised at the end."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as target:
        _, failures = relayed(
            "n1: a\n" * 5 + "pdsh@x: n2: ssh exited with exit code 3\n", PLAN, target
        )
    assert failures.hosts == {"n2": 3}
