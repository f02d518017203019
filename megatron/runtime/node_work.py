"""Long work that one process of each node does for the others, which wait awake.

The work runs in a thread. Meanwhile all ranks of the run meet every few seconds in a small collective:
none of these ever waits long, however long the work takes, so that no collective times out; and where
one node fails, all ranks end with its words within seconds, although others are still at work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, NamedTuple, NoReturn, TypeVar

from tqdm import tqdm

from megatron.errors import BarrierError, NeoXError, words_of
from megatron.logging import get_logger
from megatron.runtime.world import World

T = TypeVar("T")
log = get_logger(__name__)

STALL_S: Final = 1800.0  # without a byte, then the work has failed
# Seconds.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 2.0
_PATIENCE: Final = 5.0  # for work to clean up that is not wanted any more
_LINE_PERIOD: Final = 30.0  # between two lines of a log, where no terminal shows a bar


class Stopped(Exception):
    """Raised in the work once nobody waits for it any more."""


class Progress:
    """Bytes done of a total, counted by the threads of the work.

    Attributes:
        total, done: bytes.
    """

    def __init__(self) -> None:
        self.total = self.done = 0
        self._lock = threading.Lock()
        self._changed = time.monotonic()
        self._stopped = False

    def expect(self, nbytes: int) -> None:
        """So much more is to be done."""
        self.add(0)
        with self._lock:
            self.total += nbytes

    def add(self, nbytes: int) -> None:
        """So much more is done; 0 is a sign of life.

        Raises:
            Stopped: the work is not wanted any more.
        """
        with self._lock:
            if self._stopped:
                raise Stopped
            self.done += nbytes
            self._changed = time.monotonic()

    def stop(self) -> None:
        """Have the work end at its next sign of life."""
        with self._lock:
            self._stopped = True

    def idle_s(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._changed


class _Report(NamedTuple):
    """What a rank says in each round: where it is, how far, and how it ended."""

    hostname: str
    total: int = 0
    done: int = 0
    finished: bool = True
    failure: str | None = None


def work_on_nodes(
    world: World, work: Callable[[Progress], T], *, what: str, stall_s: float = STALL_S
) -> T | None:
    """Have the first process of each node do ``work``; all ranks call, and return when all are done.

    Args:
        world: all ranks.
        work: gets what it counts its bytes with; talks to no other rank.
        what: its name, for messages.
        stall_s: seconds without a byte after which it has failed.

    Returns:
        What ``work`` returned, on the process that did it; None elsewhere.

    Raises:
        BarrierError: on all ranks: the work failed on a node, or came to a stop there.
        Exception: whatever else ``work`` raised, on the process that did it.
    """
    progress = Progress()
    if not world.is_local_first:
        _meet(world, progress, None, what, stall_s)
        return None
    future: Future[T] = Future()
    # A daemon, and not waited for without end: work that hangs must not keep its process from ending.
    threading.Thread(target=_fill, args=(future, work, progress), name=what, daemon=True).start()
    try:
        _meet(world, progress, future, what, stall_s)
    except BaseException:
        progress.stop()
        wait([future], timeout=_PATIENCE)
        raise
    return future.result()


def _fill(future: Future[T], work: Callable[[Progress], T], progress: Progress) -> None:
    try:
        future.set_result(work(progress))
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)


def _meet(
    world: World, progress: Progress, future: Future[T] | None, what: str, stall_s: float
) -> None:
    """Gather what all ranks report, again and again, until all work is done."""
    pause, display = _FIRST_PAUSE, _Display(what, world.is_first)
    try:
        while True:
            if future is None:
                time.sleep(pause)
                report = _Report(world.hostname)
            else:
                report = _look(world, progress, future, pause, what, stall_s)
            reports = world.all_gather(report)
            for rank, other in enumerate(reports):
                if other.failure is not None:
                    if future is not None and rank == world.rank:
                        _raise_own(future)
                    where = f"rank {rank} on {other.hostname}: " if world.size > 1 else ""
                    raise BarrierError(where + other.failure, everywhere=True)
            display.show(reports)
            if all(other.finished for other in reports):
                return
            pause = min(1.5 * pause, _LONGEST_PAUSE)
    finally:
        display.close()


def _look(
    world: World, progress: Progress, future: Future[T], pause: float, what: str, stall_s: float
) -> _Report:
    """How far the work of this process is, after a pause at most."""
    wait([future], timeout=pause)
    failure = None
    if future.done():
        error = future.exception()
        failure = None if error is None else words_of(error)
    elif progress.idle_s() > stall_s:
        failure = (
            f"{what}: not a byte more for {progress.idle_s():.0f} s, after {progress.done:,} of "
            f"{progress.total:,}\n"
            "  to do: see whether the file system answers; index_build_timeout_s is how long to wait"
        )
    return _Report(world.hostname, progress.total, progress.done, future.done(), failure)


def _raise_own(future: Future[T]) -> None:
    """Raise a fault of the program as itself, with its traceback."""
    error = future.exception() if future.done() else None
    if error is not None and not isinstance(error, NeoXError | OSError):
        raise error


class _Display:
    """The slowest node's bytes: as a bar on a terminal, else as a line in the log now and then."""

    def __init__(self, what: str, shows: bool) -> None:
        self._what, self._shows = what, shows
        self._bar: tqdm[NoReturn] | None = None
        self._start = self._last = time.monotonic()

    def show(self, reports: list[_Report]) -> None:
        working = [report for report in reports if report.total]
        if not self._shows or not working:
            return
        slowest = min(working, key=lambda report: report.done / report.total)
        if self._bar is None:
            self._bar = tqdm(
                desc=self._what, total=slowest.total, unit="B", unit_scale=True, disable=None
            )
        self._bar.total, self._bar.n = slowest.total, slowest.done
        self._bar.refresh()
        now = time.monotonic()
        if self._bar.disable and now - self._last > _LINE_PERIOD:
            self._last = now
            rate = slowest.done / (now - self._start)
            left = f", {(slowest.total - slowest.done) / rate:,.0f} s left" if rate else ""
            log.info(
                "%s: %.1f of %.1f GiB, %.2f GiB/s%s",
                self._what,
                slowest.done / 2**30,
                slowest.total / 2**30,
                rate / 2**30,
                left,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
