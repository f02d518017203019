"""Writing the index of a token file, of either form, in pieces: in no more memory than a few of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt

from megatron.data.cached_index import write_cached_index
from megatron.data.index_file import FIELDS, MMAP_MAGIC, code_of

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
    entries = len(sizes) + 1 if doc_idx is None else len(doc_idx)
    documents = _pieces(entries, doc_idx)
    if impl == "cached":
        write_cached_index(file, sizes, entries, documents)
        return
    file.write(MMAP_MAGIC)
    file.write(FIELDS.pack(1, code_of(dtype), len(sizes), entries))
    file.write(sizes.astype("<i4", copy=False).data)
    for pointers in _pointers(sizes, dtype.itemsize):
        file.write(pointers.data)
    for piece in documents:
        file.write(piece.data)


def _pointers(sizes: npt.NDArray[np.int32], width: int) -> Iterator[npt.NDArray[np.int64]]:
    """The byte that each sequence starts at, in pieces."""
    start = 0
    for first in range(0, len(sizes), _PIECE):
        nbytes = sizes[first : first + _PIECE].astype(np.int64) * width
        ends = np.cumsum(nbytes) + start
        yield (ends - nbytes).astype("<i8", copy=False)
        start = int(ends[-1])


def _pieces(count: int, numbers: npt.NDArray[np.int64] | None) -> Iterator[npt.NDArray[np.int64]]:
    """``numbers``, or else 0 … ``count - 1``, in pieces."""
    for first in range(0, count, _PIECE):
        stop = min(first + _PIECE, count)
        piece = np.arange(first, stop, dtype="<i8") if numbers is None else numbers[first:stop]
        yield np.ascontiguousarray(piece, "<i8")
