"""Where the wall time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """Sums the seconds spent inside ``with watch:`` until :meth:`take` hands them over."""

    def __init__(self) -> None:
        self._total = 0.0
        self._start = 0.0

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._total += time.perf_counter() - self._start

    def take(self) -> float:
        """The seconds since the last call of this method; starts again from zero."""
        total, self._total = self._total, 0.0
        return total


def timed(items: Iterable[T], watch: Stopwatch) -> Iterator[T]:
    """Yield ``items``; the time that getting each of them takes goes to ``watch``."""
    iterator = iter(items)
    while True:
        with watch:
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
