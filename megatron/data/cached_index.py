"""The index file of the ``cached`` form, bit-compatible with GPT-NeoX.

Everything is little-endian and 8 bytes wide. ``prefix.idx`` is

    magic ``TNTIDX\\0\\0`` · version 1 · dtype code · element size · N · S · D
    (N + 1) dim offsets · (N + 1) data offsets (elements of .bin) · S sizes · D document index

and ``prefix.bin`` is the tokens, always i32 when written here. Legend: N sequences, S sizes of all
their dimensions (a sequence of tokens has one: S = N), D = number of documents + 1.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from megatron.data.index_file import CACHED_MAGIC, DTYPES, IndexFile
from megatron.data.mapping import map_file
from megatron.errors import DataError

CACHED_DTYPE: Final = np.dtype("<i4")

CACHED_FIELDS: Final = struct.Struct("<6Q")  # version, dtype code, element size, N, S, D
_HEADER_BYTES: Final = len(CACHED_MAGIC) + CACHED_FIELDS.size


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
    version, code, width, count, sizes, documents = CACHED_FIELDS.unpack_from(
        raw.data, len(CACHED_MAGIC)
    )
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
