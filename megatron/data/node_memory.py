"""``data_impl: cached``: the tokens in memory, once per node, for all its ranks and loader workers.

The first process of a node reads the files into one memory file; the others map it. One file for all
datasets, so that one descriptor is open however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from megatron.data.indexed_dataset import MemoryPart, MMapIndexedDataset, data_file_path
from megatron.data.memory_file import MemoryFile
from megatron.data.parallel_read import Reading, read_files, write_at
from megatron.logging import get_logger
from megatron.runtime.fs_barrier import open_alike
from megatron.runtime.node_work import STALL_S, Progress, work_on_nodes
from megatron.runtime.world import World

log = get_logger(__name__)

_ALIGNMENT: Final = 4096  # bytes; datasets may have different types


def hold_in_memory(
    datasets: Sequence[MMapIndexedDataset], world: World, *, stall_s: float = STALL_S
) -> list[MMapIndexedDataset]:
    """The same ``datasets`` with their tokens in the memory of this node. All ranks call.

    The memory is held while a dataset lives, or an array out of one.

    Raises:
        BarrierError: on all ranks: a node has too little memory, or a file cannot be read, or gave no
            byte for ``stall_s`` seconds.
    """
    places, size = _places(datasets)
    made = work_on_nodes(
        world,
        lambda progress: _load(datasets, places, size, progress),
        what="data_impl: cached",
        stall_s=stall_s,
    )
    # The place, not the object: unpickled on another node it would look for a process of this one.
    offers = world.all_gather((world.node_rank, None if made is None else made.place))

    def share() -> tuple[list[MMapIndexedDataset], str]:
        # The first process keeps the object it made: it owns the descriptor.
        memory = made or MemoryFile(
            *next(place for node, place in offers if place and node == world.node_rank)
        )
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
    datasets: Sequence[MMapIndexedDataset],
    places: Sequence[tuple[int, int]],
    size: int,
    progress: Progress,
) -> MemoryFile:
    start = time.monotonic()

    def fill(memory: int) -> None:
        progress.expect(sum(nbytes for _, nbytes in places))
        readings = [
            Reading(data_file_path(data.prefix), nbytes, partial(_store, memory, first))
            for data, (first, nbytes) in zip(datasets, places, strict=True)
        ]
        read_files(readings, progress.add)

    memory = MemoryFile.make(size, fill)
    log.info("data_impl: cached: %.2f GiB read in %.1f s", size / 2**30, time.monotonic() - start)
    return memory


def _store(memory: int, base: int, first: int, piece: bytes) -> None:
    write_at(memory, piece, base + first)
