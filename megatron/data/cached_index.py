"""The index file of the ``cached`` form, bit-compatible with GPT-NeoX: reading and writing.

Everything is little-endian and 8 bytes wide. ``prefix.idx`` is

    magic ``TNTIDX\\0\\0`` · version 1 · dtype code · element size · N · S · D
    (N + 1) dim offsets · (N + 1) data offsets (elements of .bin) · S sizes · D document index

and ``prefix.bin`` is the tokens, always i32 when written here. Legend: N sequences, S sizes of all
their dimensions (a sequence of tokens has one: S = N), D = number of documents + 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from megatron.data.index_file import CACHED_MAGIC, DTYPES, IndexFile, code_of
from megatron.data.mapping import map_file
from megatron.errors import DataError

CACHED_DTYPE: Final = np.dtype("<i4")

_FIELDS: Final = struct.Struct("<6Q")  # version, dtype code, element size, N, S, D
_HEADER_BYTES: Final = len(CACHED_MAGIC) + _FIELDS.size
_PIECE: Final = 1 << 21  # numbers written at once


def read_cached_index(path: str) -> IndexFile:
    """Map an ``.idx`` file of the cached form and check its header against its own size.

    Raises:
        DataError: it is cut, too long, of another version or dtype, or holds no rows of tokens.
    """
    raw = map_file(path)
    if raw.size < _HEADER_BYTES:
        raise DataError(
            f"{path}: has {raw.size} bytes, its header alone takes {_HEADER_BYTES}: the file is cut; "
            "copy or make it anew"
        )
    version, code, width, count, sizes, documents = _FIELDS.unpack_from(raw.data, len(CACHED_MAGIC))
    if version != 1 or code not in DTYPES or DTYPES[code].itemsize != width:
        raise DataError(
            f"{path}: version {version}, dtype code {code}, elements of {width} bytes; expected version "
            "1 and a code from 1 to 8 with its own width: the file is damaged or of a newer format"
        )
    expected = _HEADER_BYTES + 8 * (2 * (count + 1) + sizes + documents)
    if raw.size != expected:
        raise DataError(
            f"{path}: has {raw.size:,} bytes, its header ({count:,} sequences, {sizes:,} sizes, "
            f"{documents:,} entries of the document index) asks for {expected:,}: the file is cut or "
            "damaged; copy or make it anew"
        )
    numbers = raw[_HEADER_BYTES:].view("<i8")
    dims, offsets, rest = np.split(numbers, (count + 1, 2 * (count + 1)))
    if sizes != count or int(dims[0]) != 0 or int(dims[-1]) != count:
        raise DataError(
            f"{path}: has {sizes:,} sizes for {count:,} sequences: these are no rows of tokens, which "
            "have one size each"
        )
    return IndexFile(DTYPES[code], rest[:sizes], offsets[:-1], rest[sizes:], pointer_step=1)


def write_cached_index(
    file: BinaryIO,
    sizes: npt.NDArray[np.int32],
    entries: int,
    doc_idx: Iterable[npt.NDArray[np.int64]],
) -> None:
    """Write the index of sequences of ``sizes`` (``[N]``, tokens) and of the document index, which comes
    in pieces with ``entries`` numbers in all."""
    code = code_of(CACHED_DTYPE)
    fields = (1, code, CACHED_DTYPE.itemsize, len(sizes), len(sizes), entries)
    file.write(CACHED_MAGIC + _FIELDS.pack(*fields))
    for first in range(0, len(sizes) + 1, _PIECE):
        stop = min(first + _PIECE, len(sizes) + 1)
        file.write(np.arange(first, stop, dtype="<i8").data)
    file.write(struct.pack("<q", 0))
    for offsets in _ends(sizes):
        file.write(offsets.data)
    for first in range(0, len(sizes), _PIECE):
        file.write(sizes[first : first + _PIECE].astype("<i8").data)
    for piece in doc_idx:
        file.write(piece.astype("<i8", copy=False).data)


def _ends(sizes: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int64]]:
    """The element after the last one of each sequence, in pieces."""
    start = 0
    for first in range(0, len(sizes), _PIECE):
        ends = np.cumsum(sizes[first : first + _PIECE], dtype=np.int64) + start
        yield ends.astype("<i8", copy=False)
        start = int(ends[-1])
