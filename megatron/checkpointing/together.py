"""One outcome for all ranks: a step succeeds everywhere or raises the same error everywhere.

A rank that raised on its own would leave its peers in a collective that it never joins. So each
rank reports how its part went, and every rank raises the guilty one's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from megatron.errors import CheckpointError, NeoXError
from megatron.runtime.world import World

T = TypeVar("T")


@dataclass(frozen=True)
class _Report:
    """What one rank says: ``problem`` is None when its part went well."""

    value: object
    problem: str | None
    hostname: str


def together(
    world: World,
    action: Callable[[], T] | None,
    *,
    expected: tuple[type[Exception], ...] = (OSError,),
) -> list[T | None]:
    """Run ``action`` here and wait until every rank has run its own.

    ``action`` must not use collectives after a point at which it can fail, or must reach all of
    them before it raises.

    Args:
        world: all ranks call this.
        action: this rank's part; None where there is nothing to do.
        expected: exceptions that are somebody's full disk or broken file, besides
            :class:`NeoXError`. Others are faults: they pass through and end this process.

    Returns:
        What each rank's action returned, in rank order; None for ranks without one.

    Raises:
        CheckpointError: on every rank, when any rank's action failed: the first one's words first.
    """
    value: T | None = None
    problem: str | None = None
    caught: tuple[type[Exception], ...] = (NeoXError, *expected)
    try:
        value = action() if action is not None else None
    except caught as error:
        problem = describe(error)
    reports = world.all_gather(_Report(value, problem, world.hostname))
    failed = {rank: report for rank, report in enumerate(reports) if report.problem is not None}
    if failed:
        raise CheckpointError(_failure_text(failed, world.size), everywhere=True)
    return [report.value for report in reports]  # type: ignore[misc]


def describe(error: Exception) -> str:
    """An exception in one line or, for a :class:`NeoXError`, in its own words."""
    if isinstance(error, NeoXError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else '(no text)'}"


def _failure_text(failed: dict[int, _Report], world_size: int) -> str:
    rank, report = next(iter(failed.items()))
    text = str(report.problem)
    if world_size > 1:
        text = f"rank {rank} on {report.hostname}: {text}"
    others = [r for r, other in failed.items() if r != rank]
    if others:
        numbers = ", ".join(map(str, others[:8])) + (", …" if len(others) > 8 else "")
        text += f" (ranks {numbers} failed too)" if len(others) > 1 else f" (rank {numbers} too)"
    return text
