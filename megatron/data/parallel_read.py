"""Read whole files fast: in pieces, several at a time, because a network file system answers several
requests at once. One piece is in memory per thread; no more files are open than there are threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from megatron.errors import DataError

PIECE: Final = 16 * 1024 * 1024  # bytes
_THREADS: Final = 4

Take = Callable[[int, bytes], None]


class Reading(NamedTuple):
    """Read the first ``nbytes`` of ``path`` and give each piece to ``take(first byte, piece)``.

    Pieces come in any order and from several threads; each but the last has :data:`PIECE` bytes.
    """

    path: str
    nbytes: int
    take: Take


def read_files(readings: Sequence[Reading], count: Callable[[int], None]) -> None:
    """Read all these files; ``count`` hears of the bytes of each piece that has been taken.

    Raises:
        DataError: a file has become shorter.
        OSError: a file cannot be read; says which one.
    """

    def read(reading: Reading, first: int) -> None:
        piece = _piece_of(reading, first)
        reading.take(first, piece)
        count(len(piece))

    with ThreadPoolExecutor(_THREADS) as pool:
        futures = [
            pool.submit(read, reading, first)
            for reading in readings
            for first in range(0, reading.nbytes, PIECE)
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _piece_of(reading: Reading, first: int) -> bytes:
    stop = min(first + PIECE, reading.nbytes)
    descriptor = os.open(reading.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        piece = os.pread(descriptor, stop - first, first)
        while len(piece) < stop - first:
            more = os.pread(descriptor, stop - first - len(piece), first + len(piece))
            if not more:
                raise DataError(
                    f"{reading.path}: has {first + len(piece):,} bytes now, {reading.nbytes:,} when it was "
                    "opened"
                )
            piece += more
    except OSError as error:  # the system does not say of which file
        raise OSError(error.errno, error.strerror, reading.path) from error
    finally:
        os.close(descriptor)
    return piece


def write_at(descriptor: int, content: bytes, first: int) -> None:
    """Write all of ``content`` from byte ``first`` on."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, first)
        view, first = view[written:], first + written
