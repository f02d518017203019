"""``mmap_warmup``: read a token file once at the start, so that training finds it in memory.

Training jumps through the file; on a slow file system each jump waits. Reading it in order fills the
page cache, which all processes of a node share, at the full speed of the disk.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from megatron.logging import get_logger

if TYPE_CHECKING:  # torch comes with it, and the tools that write token files do without
    from megatron.runtime.world import World

log = get_logger(__name__)

_PIECE: Final = 16 * 1024 * 1024  # bytes
_THREADS: Final = 4  # network file systems answer several requests at once


def warm_up(path: str | os.PathLike[str], world: World) -> bool:
    """Read ``path`` through, by the first process of each node. Returns whether this process did.

    A file larger than the memory that is available is left alone: its start would be gone from the
    cache before its end is read.

    Raises:
        OSError: it cannot be read.
    """
    if not world.is_local_first:
        return False
    size, available = os.path.getsize(path), available_memory()
    if size > available:
        log.warning(
            "mmap_warmup: %s has %.1f GiB, only %.1f GiB of memory are available: not read ahead",
            path,
            size / 2**30,
            available / 2**30,
        )
        return False
    start = time.monotonic()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            read = sum(pool.map(lambda at: _touch(descriptor, at), range(0, size, _PIECE)))
    finally:
        os.close(descriptor)
    log.info(
        "mmap_warmup: %s: %.2f GiB read in %.1f s", path, read / 2**30, time.monotonic() - start
    )
    return True


def _touch(descriptor: int, at: int) -> int:
    return len(os.pread(descriptor, _PIECE, at))


def available_memory() -> int:
    """Bytes that can be filled without swapping, page cache that can be dropped included.

    The least of what the machine has and what the control groups of this process allow (containers).
    """
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                room = int(line.split()[1]) * 1024
    return min([room, *_control_group_rooms()])


def _control_group_rooms(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes that each control group (version 2) around this process leaves."""
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    except OSError:
        return []
    rooms = []
    for group in (root / own, *(root / own).parents):
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
            statistics = (group / "memory.stat").read_text().split()
        except OSError:  # the root has none; elsewhere version 1
            continue
        if limit != "max":
            cache = int(statistics[statistics.index("inactive_file") + 1])
            rooms.append(max(0, int(limit) - used + cache))
    return rooms
