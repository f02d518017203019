"""Looking on: what a process of this machine is, and what comes and goes while a test waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def words_of(pid: int, what: str) -> list[bytes] | None:
    """What the system says of a process (``cmdline``, ``environ``), in words; None when it has gone."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except OSError:
        return None


@contextmanager
def again_and_again(look: Callable[[], None], pause: float) -> Iterator[None]:
    """Call ``look`` during the block, from a thread, ``pause`` seconds after it has returned."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(pause):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
