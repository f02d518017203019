"""``mmap_warmup``: read the token files once at the start, so that training finds them in memory.

Training jumps through the files; on a slow file system each jump waits. Reading them in order fills
the page cache, which all processes of a node share, at the full speed of the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from megatron.data.parallel_read import Reading, read_files
from megatron.logging import get_logger
from megatron.runtime.memory import available_memory
from megatron.runtime.node_work import STALL_S, Progress, work_on_nodes
from megatron.runtime.world import World

log = get_logger(__name__)


def warm_up(paths: Sequence[str], world: World, *, stall_s: float = STALL_S) -> int:
    """Read the files through, by the first process of each node. All ranks call.

    Files that are larger, all together, than the memory that is available are left alone with a
    warning: the first of them would be gone from the cache before the last is read.

    Returns:
        Bytes that this process has read.

    Raises:
        BarrierError: on all ranks: a file cannot be read, or a node got no byte for ``stall_s`` seconds.
    """
    read = work_on_nodes(
        world, lambda progress: _read(paths, progress), what="mmap_warmup", stall_s=stall_s
    )
    return read or 0


def _read(paths: Sequence[str], progress: Progress) -> int:
    sizes = [os.path.getsize(path) for path in paths]
    size, available = sum(sizes), available_memory()
    if size > available:
        log.warning(
            "mmap_warmup: the token files have %.1f GiB, only %.1f GiB of memory are available: not read "
            "ahead",
            size / 2**30,
            available / 2**30,
        )
        return 0
    start = time.monotonic()
    progress.expect(size)
    readings = [
        Reading(path, nbytes, lambda first, piece: None)
        for path, nbytes in zip(paths, sizes, strict=True)
    ]
    read_files(readings, progress.add)
    log.info("mmap_warmup: %.2f GiB read in %.1f s", size / 2**30, time.monotonic() - start)
    return size
