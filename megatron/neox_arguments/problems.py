"""What is wrong with a configuration: every problem with its place, all in one message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from megatron.errors import ConfigError

# A message is at most ten lines: one for the count, the rest for the problems.
_MAX_LINES = 10


@dataclass(frozen=True)
class Place:
    """Where a value was written: ``file.yml:12``, or the command line (``line`` is None)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class Problem:
    """One mistake.

    Attributes:
        key: the dotted key it is about, as it was written ("" for a file as a whole).
        text: what was found, what was expected, what to do.
        place: where it was written.
        field: the top-level key that rules know it by, if that is another.
    """

    key: str
    text: str
    place: Place | None = None
    field: str | None = None

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place and self.place.source else ""
        key = f"{self.key}: " if self.key else ""
        return f"{where}{key}{self.text}"


class Problems:
    """Collects problems until all are known."""

    def __init__(self) -> None:
        self._all: list[Problem] = []
        self._sources: dict[str, int] = {}

    def expect(self, source: str) -> None:
        """Messages name the sources in the order in which they are expected."""
        self._sources.setdefault(source, len(self._sources))

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(
        self, key: str, text: str, place: Place | None = None, field: str | None = None
    ) -> None:
        """Note that ``key`` is wrong; the same sentence about the same key is noted once."""
        problem = Problem(key, text, place, field)
        if problem not in self._all:
            self._all.append(problem)

    def bad_keys(self) -> set[str]:
        """The top-level keys that have a problem: rules about them would only repeat it."""
        return {problem.field or problem.key.split(".")[0] for problem in self._all}

    def about(self, key: str) -> str:
        """What is wrong with ``key`` itself; nothing if that is fine."""
        return next((problem.text for problem in self._all if problem.key == key), "")

    def message(self) -> str:
        """All problems, grouped by file in the order of the files, by line within one."""
        order = dict(self._sources)
        for problem in self._all:
            order.setdefault(problem.place.source if problem.place else "", len(order))

        def position(problem: Problem) -> tuple[int, int]:
            if problem.place is None:
                return len(order), 0
            return order[problem.place.source], problem.place.line or 0

        lines = [str(problem) for problem in sorted(self._all, key=position)]
        if len(lines) == 1:
            return lines[0]
        told, rest = lines, ""
        if len(lines) >= _MAX_LINES:
            told = lines[: _MAX_LINES - 2]
            keys = [p.key or str(p.place) for p in sorted(self._all, key=position)][
                _MAX_LINES - 2 :
            ]
            rest = f"\n  and {len(keys)} more, about: {', '.join(dict.fromkeys(keys))}"
        body = "\n".join(f"  {line}" for line in told)
        return f"the configuration has {len(lines)} problems:\n{body}{rest}"

    def raise_if_any(self) -> None:
        """Raise all problems as one :class:`ConfigError`. Every rank would say the same."""
        if self._all:
            raise ConfigError(self.message(), everywhere=True)


def shown(value: object, limit: int = 60) -> str:
    """A value as a message shows it: short, and texts in quotes."""
    text = repr(value)
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    return text if len(text) <= limit else text[: limit - 3] + "..."


def in_brackets(place: Place | None) -> str:
    """`` (file.yml:12)`` for the middle of a sentence; nothing for values that stand in no file."""
    return f" ({place})" if place is not None and place.source else ""


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a mistyped ``word`` most probably means, if any is near enough."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.75)
    return matches[0] if matches else None
