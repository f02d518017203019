"""Protects the accounting of waiting time."""

import time
from collections.abc import Iterator

from megatron.runtime.timers import Stopwatch, timed


def slow_items() -> Iterator[int]:
    for item in range(3):
        time.sleep(0.02)
        yield item


def test_waiting_for_items_is_counted_and_working_on_them_is_not() -> None:
    watch = Stopwatch()
    got = []
    for item in timed(slow_items(), watch):
        got.append(item)
        time.sleep(0.1)
    waited = watch.take()
    assert got == [0, 1, 2]
    assert 0.06 <= waited < 0.25
    assert watch.take() == 0.0
