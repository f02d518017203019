"""What the doctor has to say: findings, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Level = Literal["ok", "warning", "error"]
# The three that people ask about a run on several hosts.
Question = Literal["data", "memory", "speed"]
QUESTIONS: Mapping[Question, str] = {
    "data": "do all hosts see the same data",
    "memory": "is there enough memory",
    "speed": "do network and disks keep up",
}

F = TypeVar("F")
# The facts of one topic by host, that of rank 0 first. Hosts of which nothing is known are left out.
ByHost = Mapping[str, F]


@dataclass(frozen=True)
class Finding:
    """One line of the page.

    Attributes:
        topic: the block that it stands in.
        level: how bad it is; an error keeps a run from starting, or makes it train on something else.
        text: what was found where, with units.
        to_do: the key or the command that mends it; empty where all is well.
        answers: the question of the three that it is about.
    """

    topic: str
    level: Level
    text: str
    to_do: str = ""
    answers: Question | None = None


def names(hosts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``, ``a, b, c and 61 more``."""
    shown = list(hosts)
    if len(shown) > 4:
        shown = [*shown[:3], f"{len(hosts) - 3} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def groups(values: ByHost[F]) -> dict[F, list[str]]:
    """The hosts that have each value, in the order in which values first appear."""
    found: dict[F, list[str]] = {}
    for host, value in values.items():
        found.setdefault(value, []).append(host)
    return found
