"""Writing the index of a token file, of either form, in pieces: in no more memory than a few of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt

from megatron.data.cached_index import CACHED_DTYPE, CACHED_FIELDS
from megatron.data.index_file import CACHED_MAGIC, FIELDS, MMAP_MAGIC, code_of

_PIECE: Final = 1 << 21  # numbers written at once


def write_index(
    file: BinaryIO,
    impl: Literal["mmap", "cached"],
    dtype: np.dtype[Any],
    sizes: npt.NDArray[np.int32],
    doc_idx: npt.NDArray[np.int64] | None = None,
) -> None:
    """Write the ``.idx`` of sequences that follow each other in ``.bin``.

    Args:
        file: open and empty.
        impl: the form.
        dtype: type of a token on disk.
        sizes: ``[N]``, tokens of each sequence.
        doc_idx: ``[D]``, first sequence of each document, and N; None where each sequence is a document.
    """
    count = len(sizes)
    entries = count + 1 if doc_idx is None else len(doc_idx)
    numbers: Iterable[npt.NDArray[np.int64]]
    if impl == "cached":
        fields = (1, code_of(CACHED_DTYPE), CACHED_DTYPE.itemsize, count, count, entries)
        file.write(CACHED_MAGIC + CACHED_FIELDS.pack(*fields))
        end = np.array([sizes.sum(dtype=np.int64)], "<i8")
        numbers = chain(_pieces(count + 1), _starts(sizes, 1), [end], _pieces(count, sizes))
    else:
        file.write(MMAP_MAGIC + FIELDS.pack(1, code_of(dtype), count, entries))
        file.write(sizes.astype("<i4", copy=False).data)
        numbers = _starts(sizes, dtype.itemsize)
    for piece in chain(numbers, _pieces(entries, doc_idx)):
        file.write(piece.data)


def _starts(sizes: npt.NDArray[np.int32], width: int) -> Iterator[npt.NDArray[np.int64]]:
    """Where each sequence starts, in units of which a token takes ``width``, in pieces."""
    start = 0
    for first in range(0, len(sizes), _PIECE):
        lengths = sizes[first : first + _PIECE].astype(np.int64) * width
        ends = np.cumsum(lengths) + start
        yield (ends - lengths).astype("<i8", copy=False)
        start = int(ends[-1])


def _pieces(count: int, numbers: npt.NDArray[Any] | None = None) -> Iterator[npt.NDArray[np.int64]]:
    """``numbers``, or else 0 … ``count - 1``, in pieces."""
    for first in range(0, count, _PIECE):
        stop = min(first + _PIECE, count)
        piece = np.arange(first, stop, dtype="<i8") if numbers is None else numbers[first:stop]
        yield np.ascontiguousarray(piece, "<i8")
