"""One process builds, the others wait for it on the file system: sharing without collectives.

Whatever takes long to make and is the same for all ranks is made once per file system. The builder
works in a private folder, which nobody reads, and publishes whole folders by rename::

    root/.build-<run>/heartbeat      a counter that runs while the builder lives
    root/.build-<run>/<name>/...     under construction
    root/<name>/...                  published: complete, or it would not be there
    root/.failed-<run>/failed.txt    the private folder after a failure, with the builder's words

The others look at ``root`` now and then. A collective could not do this: it would time out on a slow
build, and would leave them hanging when the builder fails. ``<run>`` is handed out by the builder, so
that what other runs have left behind means nothing here.
"""

from __future__ import annotations

import errno
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from megatron.errors import BarrierError, NeoXError, words_of
from megatron.logging import get_logger
from megatron.runtime.durable import new_file, sync_folder
from megatron.runtime.heartbeat import Heartbeat
from megatron.runtime.leftovers import (
    BUILD_PREFIX,
    FAILED_PREFIX,
    HEARTBEAT_NAME,
    list_folder,
    remove_stale,
)
from megatron.runtime.world import World

T = TypeVar("T")
log = get_logger(__name__)

_FAILURE: Final = "failed.txt"

_MANY: Final = 8  # things to build, from which on several are built at a time
_BUILDERS: Final = 8

# Seconds.
_LISTING_PERIOD: Final = 0.5  # at most 2 listings a second, all processes of a node together
_LONGEST_PAUSE: Final = 5.0
_DEAD_AFTER: Final = 30.0  # without a change of the heartbeat, on the waiter's clock


def is_builder(world: World, use_shared_fs: bool) -> bool:
    """Whether this rank builds: one per file system. Nothing else decides this."""
    return world.rank == 0 if use_shared_fs else world.local_rank == 0


@dataclass(frozen=True)
class _Word(Generic[T]):
    """What a builder tells the ranks that it serves before it builds."""

    run: str
    value: T | None = None
    names: tuple[str, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class Task(Generic[T]):
    """Something to be had under ``root``, and how to make it.

    Attributes:
        root: folder of what is published; only the builder writes there.
        prepare: tells what is to be had; runs on the builder, its result on every rank (pickled).
        missing: the names that are not published yet, of what ``prepare`` has told.
        build: makes one of them: fills the folder that it is given, which exists and is empty.
        is_whole: whether a published folder is complete.
        advice: what the user can do when ``root`` cannot be written.
    """

    root: Path
    prepare: Callable[[], T]
    missing: Callable[[T], Sequence[str]]
    build: Callable[[T, str, Path], None]
    is_whole: Callable[[Path], bool]
    advice: str


def build_or_wait(task: Task[T], world: World, *, use_shared_fs: bool, timeout_s: float) -> T:
    """Have ``task`` done, by this rank or another, and return what its ``prepare`` told.

    All ranks call this. Where nothing is missing, nothing is written and nobody waits.

    Raises:
        BarrierError: the builder of this rank failed (with its own words), died, or took longer
            than ``timeout_s`` seconds; or ``root`` cannot be written.
        Exception: whatever ``prepare`` or ``build`` raised, on the builder itself.
    """
    if not is_builder(world, use_shared_fs):
        word: _Word[T] = _hear(world, use_shared_fs, None)
        if word.failure is not None:
            raise BarrierError(word.failure, everywhere=True)
        if word.names:
            _wait_for(word.names, word.run, task, world, timeout_s)
        return _value_of(word)
    run = f"{world.run_id}-{uuid.uuid4().hex[:8]}"
    private = None
    try:
        value = task.prepare()
        names = tuple(task.missing(value))
        if names:
            private = PrivateFolder(task.root, run)
    except Exception as error:
        shown = _with_advice(error, task)
        _hear(world, use_shared_fs, _Word[T](run, failure=words_of(shown)))
        if shown is error:
            raise
        raise shown from error
    _hear(world, use_shared_fs, _Word(run, value, names))
    if private is not None:
        log.info("%s: building %s", task.root, ", ".join(names))
        with private:
            _build(task, value, names, private)
    return value


def _build(task: Task[T], value: T, names: Sequence[str], private: PrivateFolder) -> None:
    def build_one(name: str) -> None:
        folder = private.path / name
        try:
            folder.mkdir()
            task.build(value, name, folder)
            private.publish(name, task.is_whole)
        except OSError as error:
            raise _with_advice(error, task) from error

    if len(names) < _MANY:
        for name in names:
            build_one(name)
        return
    # Many are small: what takes long is the disk, which flushes several files at once as fast as one.
    with ThreadPoolExecutor(_BUILDERS) as pool:
        deque(pool.map(build_one, names), maxlen=0)  # raises the first error; the rest is not begun


def _hear(world: World, use_shared_fs: bool, word: _Word[T] | None) -> _Word[T]:
    """The word of the builder of this rank; builders pass theirs."""
    if use_shared_fs:
        heard = world.broadcast(word, src=0)
    else:
        words = world.all_gather((world.node_rank, word))
        heard = next(w for node, w in words if node == world.node_rank and w is not None)
    assert heard is not None
    return heard


def _value_of(word: _Word[T]) -> T:
    assert word.value is not None
    return word.value


def _with_advice(error: Exception, task: Task[T]) -> Exception:
    """An :class:`OSError` (no permission, read-only, no space) as words for the user."""
    if not isinstance(error, OSError):
        return error
    what = f"{error.filename or task.root}: {error.strerror or error}"
    return BarrierError(f"{task.root}: cannot be written\n  found: {what}\n  to do: {task.advice}")


class PrivateFolder:
    """Where a builder works: a folder beside the final ones, with a heartbeat.

    As a context manager it is removed at the end of the block, or, if the block raises, renamed so
    that waiters see it, with the error's words inside.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.root, self.run = root, run
        self.path = root / (BUILD_PREFIX + run)
        root.mkdir(parents=True, exist_ok=True)
        self.path.mkdir()
        self._heartbeat = Heartbeat(self.path / HEARTBEAT_NAME)
        remove_stale(root, now=(self.path / HEARTBEAT_NAME).stat().st_mtime)

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._heartbeat.stop()
        if error is None:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        # If even this fails, the first error is still the one to show; the waiters then miss the
        # heartbeat instead.
        with suppress(OSError):
            for entry in self.path.iterdir():
                if entry.is_dir():  # half-built, and perhaps what filled the disk
                    shutil.rmtree(entry, ignore_errors=True)
            with new_file(self.path / _FAILURE) as file:
                file.write(words_of(error).encode())
            self.path.rename(self.root / (FAILED_PREFIX + self.run))

    def publish(self, name: str, is_whole: Callable[[Path], bool]) -> bool:
        """Give the folder ``name`` to everybody, by rename.

        Returns:
            False where another job has been first: its folder is as good and stays.

        Raises:
            OSError: the file system refuses.
        """
        source, target = self.path / name, self.root / name
        sync_folder(source)
        try:
            source.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            if is_whole(target):
                return False
            # Damaged since it was published. Whoever has it mapped keeps what is mapped.
            target.rename(self.path / f"damaged-{name}")
            source.rename(target)
        sync_folder(self.root)
        return True


def _wait_for(
    names: Sequence[str], run: str, task: Task[T], world: World, timeout_s: float
) -> None:
    """Return when all ``names`` are published and whole."""
    root, private = task.root, task.root / (BUILD_PREFIX + run)
    pending = list(names)
    pause = _LISTING_PERIOD * world.local_size
    longest = max(_LONGEST_PAUSE, pause)
    dead_after = max(_DEAD_AFTER, 3 * longest)
    start = last_change = time.monotonic()
    heartbeat: str | None = None
    time.sleep(_LISTING_PERIOD * world.local_rank)  # the processes of a node look in turn
    while True:
        # Listing again, not asking for one name: a network file system may remember for many
        # seconds that a name was not there, but checks whether the list has changed.
        entries = list_folder(root)
        if FAILED_PREFIX + run in entries:
            words = _read(root / (FAILED_PREFIX + run) / _FAILURE) or "(it left no message)"
            raise BarrierError(words, everywhere=True)
        pending = [
            name for name in pending if name not in entries or not task.is_whole(root / name)
        ]
        if not pending:
            return
        now, beat = time.monotonic(), _read(private / HEARTBEAT_NAME)
        if beat != heartbeat:
            heartbeat, last_change = beat, now
        why = None
        if now - last_change > dead_after:
            why = f"its builder has given no sign of life for {now - last_change:.0f} s"
        elif now - start > timeout_s:
            why = f"index_build_timeout_s ({timeout_s:g} s) is over"
        if why:
            count = f"number {int(heartbeat)}" if heartbeat else "none seen"
            raise BarrierError(
                f"{root / pending[0]}: still not there, waited for on {world.hostname}: {why}\n"
                f"  last heartbeat in {private}: {count}, {now - last_change:.0f} s ago\n"
                "  to do: see the builder's own message, if any; if it runs on another node, check that "
                f"{root} is the same folder there (else use_shared_fs: false)"
            )
        time.sleep(min(pause, max(0.0, start + timeout_s - now) + _LISTING_PERIOD))
        pause = min(1.5 * pause, longest)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:  # not there yet, or not any more
        return None


def open_alike(world: World, open_here: Callable[[], tuple[T, str]], what: str) -> T:
    """Open something on every rank and make sure that all hold the same.

    Args:
        world: all ranks call this.
        open_here: opens it; returns it with a text that is equal where the content is.
        what: its name, for messages.

    Raises:
        BarrierError: on all ranks, if one could not open it or holds something else.
    """
    failure, opened, digest = None, None, ""
    try:
        opened, digest = open_here()
    except (NeoXError, OSError) as error:
        failure = words_of(error)
    reports = world.all_gather((world.hostname, digest, failure))
    for rank, (host, _, words) in enumerate(reports):
        if words is not None:
            where = f"rank {rank} on {host}: " if world.size > 1 else ""
            raise BarrierError(where + words, everywhere=True)
    for rank, (host, other, _) in enumerate(reports):
        if other != reports[0][1]:
            raise BarrierError(
                f"rank {rank} on {host} and rank 0 on {reports[0][0]} have different {what}\n"
                "  found: the manifests differ\n"
                "  to do: copy the same data files to all nodes, then start again",
                everywhere=True,
            )
    assert opened is not None
    return opened
