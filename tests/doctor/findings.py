"""Short forms for tests of findings."""

from __future__ import annotations

from collections.abc import Iterable

from megatron.doctor.finding import Finding
from megatron.doctor.needs import Needs

GIB = 2**30
MIB = 2**20


def bad(findings: Iterable[Finding]) -> list[Finding]:
    """Warnings and errors; each has to say what to do."""
    found = [finding for finding in findings if finding.level != "ok"]
    assert all(finding.to_do for finding in found)
    return found


def only(findings: Iterable[Finding], level: str) -> Finding:
    """The one finding that is not ok, which has this ``level``."""
    (finding,) = bad(findings)
    assert finding.level == level
    return finding


NEEDS = Needs(
    ranks_per_host=2,
    num_workers=2,
    device_bytes=60 * GIB,
    host_bytes=20 * GIB,
    held_tokens_bytes=0,
    shm_bytes=100 * MIB,
    gradient_bytes=2 * GIB,
    step_flops=1e15,
    checkpoint_bytes=10 * GIB,
)
