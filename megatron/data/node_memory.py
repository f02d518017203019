"""``data_impl: cached``: the tokens in memory, once per node, for all its ranks and loader workers.

The first process of a node reads the files into one memory file; the others map it. One file for all
datasets, so that one descriptor is open however many there are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from megatron.data.indexed_dataset import MemoryPart, MMapIndexedDataset, data_file_path
from megatron.data.memory_file import MemoryFile
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.runtime.fs_barrier import open_alike
from megatron.runtime.world import World

log = get_logger(__name__)

_PIECE: Final = 16 * 1024 * 1024  # bytes
_THREADS: Final = 4  # network file systems answer several requests at once
_ALIGNMENT: Final = 4096  # bytes; datasets may have different types


def hold_in_memory(
    datasets: Sequence[MMapIndexedDataset], world: World
) -> list[MMapIndexedDataset]:
    """The same ``datasets`` with their tokens in the memory of this node. All ranks call.

    The memory is held while a dataset lives, or an array out of one.

    Raises:
        BarrierError: on all ranks: a node has too little memory, or a file cannot be read.
    """
    places, size = _places(datasets)
    made, _ = open_alike(
        world,
        lambda: ((_load(datasets, places, size) if world.is_local_first else None, None), ""),
        "tokens in memory",
    )
    offers = world.all_gather((world.node_rank, made))

    def share() -> tuple[list[MMapIndexedDataset], str]:
        # The first process keeps the object it made: it owns the descriptor.
        memory = made or next(offer for node, offer in offers if offer and node == world.node_rank)
        parts = [MemoryPart(memory, *place) for place in places]
        return [
            MMapIndexedDataset(data.prefix, part)
            for data, part in zip(datasets, parts, strict=True)
        ], ""

    return open_alike(world, share, "tokens in memory")


def _places(datasets: Sequence[MMapIndexedDataset]) -> tuple[list[tuple[int, int]], int]:
    """First byte and bytes of each dataset in the memory file, and the size of that."""
    places, size = [], 0
    for data in datasets:
        places.append((size, data.tokens.nbytes))
        size += -(-data.tokens.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, size


def _load(
    datasets: Sequence[MMapIndexedDataset], places: Sequence[tuple[int, int]], size: int
) -> MemoryFile:
    start = time.monotonic()

    def fill(memory: int) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for data, (first, nbytes) in zip(datasets, places, strict=True):
                _copy(data_file_path(data.prefix), memory, first, nbytes, pool)

    memory = MemoryFile.make(size, fill)
    log.info("data_impl: cached: %.2f GiB read in %.1f s", size / 2**30, time.monotonic() - start)
    return memory


def _copy(path: str, memory: int, first: int, nbytes: int, pool: ThreadPoolExecutor) -> None:
    """Copy ``nbytes`` of the file at ``path`` to byte ``first`` of ``memory``."""
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def piece(at: int) -> int:
        done, stop = at, min(at + _PIECE, nbytes)
        while done < stop:
            read = os.pread(source, stop - done, done)
            if not read:
                raise DataError(f"{path}: has {done:,} bytes now, {nbytes:,} when it was opened")
            done += os.pwrite(memory, read, first + done)
        return done - at

    try:
        assert sum(pool.map(piece, range(0, nbytes, _PIECE))) == nbytes
    finally:
        os.close(source)
