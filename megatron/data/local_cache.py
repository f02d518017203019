"""``data_local_cache_dir``: copies of token files on each node's own disk, kept for the next job.

    root/<key>/                 a copy (see :mod:`megatron.data.local_copy`): whole, or not there
    root/.in-use-<job>.json     the copies that a job uses; locked while the job lives
    root/.deciding              locked while a job looks for room and says what it will use
    root/.copying               locked while a job copies
    root/.partial-<key>/        under construction, by the job that holds ``.copying``

A key stands for where the files are, their sizes and their times of change: what changes is copied
anew. When room is needed, copies that no living job uses go, the longest unused first. All locks are
the kernel's (``flock``): they end with their process, however that ends. Index maps and their keys
come from the files themselves, never from copies.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from megatron.data.local_copy import Source, copy, is_whole, prefix_in
from megatron.data.stored_arrays import MANIFEST
from megatron.errors import BarrierError, DataError
from megatron.logging import get_logger
from megatron.runtime.durable import sync_folder
from megatron.runtime.node_work import STALL_S, Progress, work_on_nodes
from megatron.runtime.world import World

log = get_logger(__name__)

_IN_USE: Final = ".in-use-"
_PARTIAL: Final = ".partial-"
_EVICTED: Final = ".evicted-"
_DECIDING: Final = ".deciding"
_COPYING: Final = ".copying"
_KEY: Final = re.compile(r"[0-9a-f]{32}")  # of a source, see hash_of
_OVERHEAD: Final = 64 * 1024  # bytes of a copy's folder and manifest, at most
_LOOK_PERIOD: Final = 0.2  # seconds between two attempts at a lock


class Lease:
    """Keeps a job's copies while it is held: the lock on its list of them."""

    def __init__(self, descriptor: int) -> None:
        # At the process's end the kernel does it.
        weakref.finalize(self, os.close, descriptor).atexit = False


def stage(
    prefixes: Sequence[str],
    root: Path,
    world: World,
    *,
    limit: int | None = None,
    stall_s: float = STALL_S,
) -> tuple[list[str], Lease | None]:
    """Have copies of token files on the disk of each node. All ranks call.

    Args:
        prefixes: the token files.
        root: folder of the copies, on each node.
        world: all ranks.
        limit: bytes that all copies there may take; None: as many as the disk has.
        stall_s: seconds without a byte after which the copying has failed.

    Returns:
        Where the copies are on this node, and what to hold while they are used (None on the ranks
        that need hold nothing).

    Raises:
        BarrierError: on all ranks: there is no room, or a file cannot be read or written.
    """

    def here(progress: Progress) -> tuple[list[str], Lease]:
        cache = LocalCache(root, limit)
        try:
            return cache.stage([Source.of(prefix) for prefix in prefixes], progress)
        except OSError as error:
            raise BarrierError(
                f"data_local_cache_dir: {root}: {error.filename or root}: {error.strerror or error}\n"
                "  to do: name a folder on each node's own disk that can be written and has space, or "
                "take data_local_cache_dir out: the files are then read where they are"
            ) from error

    staged = work_on_nodes(world, here, what="data_local_cache_dir", stall_s=stall_s)
    keys, lease = staged if staged else (None, None)
    offers = world.all_gather((world.node_rank, keys))
    mine = next(keys for node, keys in offers if keys is not None and node == world.node_rank)
    return [prefix_in(root / key) for key in mine], lease


class LocalCache:
    """The folder ``root`` of copies, which take ``limit`` bytes at most."""

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root, self.limit = root, limit

    def stage(self, sources: Sequence[Source], progress: Progress) -> tuple[list[str], Lease]:
        """Have copies of ``sources``; their keys, and what keeps them.

        Raises:
            DataError: there is no room, or a source changed meanwhile.
            OSError: the disk cannot be used.
        """
        start = time.monotonic()
        self.root.mkdir(parents=True, exist_ok=True)
        with _locked(self.root / _DECIDING, progress):
            self._tidy()
            wanted = {source.key: source for source in sources}
            sizes = {key: source.nbytes + _OVERHEAD for key, source in wanted.items()}
            self._make_room(sizes)
            lease = self._lease(sizes)
        missing = [source for key, source in wanted.items() if not is_whole(self.root / key)]
        if missing:
            size = sum(source.nbytes for source in missing)
            progress.expect(2 * size)
            with _locked(self.root / _COPYING, progress):
                for source in missing:
                    self._have(source, progress)
            log.info(
                "data_local_cache_dir: %.2f GiB copied to %s in %.1f s",
                size / 2**30,
                self.root,
                time.monotonic() - start,
            )
        return [source.key for source in sources], lease

    def _have(self, source: Source, progress: Progress) -> None:
        """Copy, unless another job has done so meanwhile."""
        target, partial = self.root / source.key, self.root / (_PARTIAL + source.key)
        if is_whole(target):
            progress.add(2 * source.nbytes)
            return
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            copy(source, partial, progress)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(self.root)

    def _tidy(self) -> None:
        """Remove what dead jobs have left half done."""
        left = self._folders(_EVICTED)
        descriptor = _lock(self.root / _COPYING)
        if descriptor is not None:  # nobody is copying, so all of it is left over
            left += self._folders(_PARTIAL)
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)

    def _make_room(self, wanted: Mapping[str, int]) -> None:
        """Remove unused copies until those that are ``wanted`` (bytes by key) fit beside the used ones.

        Raises:
            DataError: they do not.
        """
        for key in wanted:
            if (self.root / key).exists() and not is_whole(self.root / key):
                self._evict(self.root / key)
        present = {folder.name: _bytes_in(folder) for folder in self._folders()}
        used = self._used()
        to_come = {key: size for key, size in {**used, **wanted}.items() if key not in present}
        coming = sum(to_come.values())
        free = shutil.disk_usage(self.root).free + sum(map(_bytes_in, self._folders(_PARTIAL)))
        lacking = coming - free
        if self.limit is not None:
            lacking = max(lacking, sum(present.values()) + coming - self.limit)
        unused = [
            key for key in present.keys() - used.keys() - wanted.keys() if _is_ours(self.root / key)
        ]
        unused.sort(key=self._last_use)
        if lacking > sum(present[key] for key in unused):
            raise self._no_room(wanted, {k: n for k, n in used.items() if k not in wanted}, free)
        for key in unused:
            if lacking <= 0:
                break
            log.info("data_local_cache_dir: %s goes, unused for longest", self.root / key)
            self._evict(self.root / key)
            lacking -= present[key]
        for key in present.keys() & wanted.keys():
            with suppress(OSError):  # another user's: it stays as old as it is
                os.utime(self.root / key / MANIFEST)

    def _no_room(self, wanted: Mapping[str, int], used: Mapping[str, int], free: int) -> DataError:
        limit = "no limit" if self.limit is None else f"a limit of {self.limit:,}"
        return DataError(
            f"data_local_cache_dir: {self.root}: no room for the token files\n"
            f"  found: {sum(wanted.values()):,} bytes wanted; {sum(used.values()):,} more in use by other "
            f"jobs, {free:,} free on the disk, {limit} (data_local_cache_limit_gb)\n"
            "  to do: raise the limit, make space, or take data_local_cache_dir out: the files are then "
            "read where they are"
        )

    def _used(self) -> dict[str, int]:
        """Bytes by key of what living jobs use; the lists of dead ones are removed."""
        used: dict[str, int] = {}
        for path in self.root.glob(f"{_IN_USE}*"):
            descriptor = _lock(path)
            if descriptor is None:
                used |= json.loads(path.read_bytes())
                continue
            os.close(descriptor)
            with suppress(OSError):  # another user's
                path.unlink()
        return used

    def _lease(self, sizes: Mapping[str, int]) -> Lease:
        path = self.root / f"{_IN_USE}{uuid.uuid4().hex}.json"
        path.write_text(json.dumps(dict(sizes)))
        descriptor = _lock(path)
        assert descriptor is not None, "who decides is alone"
        return Lease(descriptor)

    def _evict(self, folder: Path) -> None:
        gone = self.root / (_EVICTED + folder.name)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _last_use(self, key: str) -> float:
        path = self.root / key / MANIFEST
        return path.stat().st_mtime if path.exists() else 0.0

    def _folders(self, prefix: str = "") -> list[Path]:
        """Copies, or what a prefix makes of their names. What else lies there is somebody's."""
        return [
            path
            for path in self.root.iterdir()
            if path.name.startswith(prefix)
            and _KEY.fullmatch(path.name.removeprefix(prefix))
            and path.is_dir()
        ]


def _is_ours(folder: Path) -> bool:
    """Whether this user may remove it."""
    return os.geteuid() in (0, folder.stat().st_uid)


def _bytes_in(folder: Path) -> int:
    """Bytes of the disk that the files of ``folder`` take."""
    total = _OVERHEAD
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock on ``path`` until it is closed; None where another one does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock on ``path``; while another job holds it, wait and give signs of life."""
    descriptor = _lock(path)
    if descriptor is None:
        log.info("%s: another job works there: waiting for it", path.parent)
    while descriptor is None:
        progress.add(0)
        time.sleep(_LOOK_PERIOD)
        descriptor = _lock(path)
    try:
        yield
    finally:
        os.close(descriptor)
