"""The index file of a token data set: its header, its types, and what is said when it is not whole.

The ``mmap`` form (the other one is in :mod:`megatron.data.cached_index`), bit-compatible with
GPT-NeoX both ways, and with Megatron-LM for integer tokens. Everything is little-endian. ``prefix.idx`` is

    magic ``MMIDIDX\\0\\0`` · u64 version 1 · u8 dtype code · u64 N · u64 D
    N × i32 sizes (tokens) · N × i64 pointers (bytes into .bin) · D × i64 document index, from 0 on
    optionally N mode bytes, which Megatron-LM's multimodal files have and which are not used here

and ``prefix.bin`` is the tokens, nothing else. Legend: N sequences, D = number of documents + 1.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from megatron.data.mapping import map_file
from megatron.errors import DataError

MMAP_MAGIC: Final = b"MMIDIDX\x00\x00"
CACHED_MAGIC: Final = b"TNTIDX\x00\x00"
FIELDS: Final = struct.Struct("<QBQQ")  # version, dtype code, N, D
HEADER_BYTES: Final = len(MMAP_MAGIC) + FIELDS.size

# GPT-NeoX's codes. Megatron-LM swaps 6 and 7, the two that tokens are never stored in.
DTYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f4"),
    7: np.dtype("<f8"),
    8: np.dtype("<u2"),
}
_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}

_UINT16_VOCABULARY: Final = 65_500  # from this vocabulary size on, GPT-NeoX stores i32


def data_file_path(prefix: str | os.PathLike[str]) -> str:
    """Where the tokens of ``prefix`` are."""
    return os.fspath(prefix) + ".bin"


def index_file_path(prefix: str | os.PathLike[str]) -> str:
    """Where the sizes, pointers and document index of ``prefix`` are."""
    return os.fspath(prefix) + ".idx"


def best_fitting_dtype(vocab_size: int | None = None) -> np.dtype[Any]:
    """The type that tokens of a vocabulary are stored in: u16 below 65,500 entries, else i32."""
    small = vocab_size is not None and vocab_size < _UINT16_VOCABULARY
    return np.dtype("<u2") if small else np.dtype("<i4")


def code_of(dtype: npt.DTypeLike) -> int:
    """The code of a type in the header.

    Raises:
        DataError: tokens are not stored in it.
    """
    try:
        return _CODES[np.dtype(dtype).newbyteorder("<")]
    except KeyError:
        known = ", ".join(str(known) for known in DTYPES.values())
        raise DataError(
            f"tokens cannot be stored as {np.dtype(dtype)}: expected one of {known}"
        ) from None


class IndexFile(NamedTuple):
    """What an ``.idx`` file says, as views of its map."""

    dtype: np.dtype[Any]
    sizes: npt.NDArray[np.signedinteger[Any]]  # [N] tokens
    pointers: npt.NDArray[np.int64]  # [N] where a sequence starts in .bin
    doc_idx: npt.NDArray[np.int64]  # [D] numbers of sequences
    pointer_step: int  # what a pointer grows by for one token: its bytes, or 1


def read_magic(path: str) -> bytes:
    """The first bytes of an index file, which tell its form.

    Raises:
        DataError: it is missing or cannot be read; says which prefixes there are.
    """
    try:
        with open(path, "rb") as file:
            return file.read(len(MMAP_MAGIC))
    except FileNotFoundError:
        raise DataError(_missing(path)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _missing(path: str) -> str:
    prefix = path[: -len(".idx")]
    other = data_file_path(prefix)
    both = "" if os.path.exists(other) else f", nor is {other}"
    lines = [f"{path}: no such file{both}: a token data set is PREFIX.bin with PREFIX.idx"]
    folder = Path(path).parent
    if not folder.is_dir():
        lines.append(f"the folder {folder} does not exist either")
    elif prefix.endswith((".bin", ".idx")):
        lines.append("write the prefix without .bin or .idx")
    else:
        near = sorted(found.name[: -len(".idx")] for found in folder.glob("*.idx"))
        if near:
            shown = ", ".join(near[:5]) + (" ..." if len(near) > 5 else "")
            lines.append(f"prefixes found in {folder}: {shown}")
    lines.append(
        "set data_path to the prefix (usually OUTPUT-PREFIX_text_document), or make the files with "
        "tools/datasets/preprocess_data.py"
    )
    return "\n".join(lines)


def read_index(path: str) -> IndexFile:
    """Map an ``.idx`` file and check its header against its own size.

    Raises:
        DataError: it is missing, has another magic, version or dtype, or is cut or too long.
    """
    magic = read_magic(path)
    if magic != MMAP_MAGIC:
        raise DataError(
            f"{path}: starts with {magic!r}, expected {MMAP_MAGIC!r} or {CACHED_MAGIC!r}: this is no index "
            "of token files; make it anew with tools/datasets/preprocess_data.py"
        )
    raw = map_file(path)
    if raw.size < HEADER_BYTES:
        raise DataError(
            f"{path}: has {raw.size} bytes, its header alone takes {HEADER_BYTES}: the file is cut; "
            "copy or make it anew"
        )
    version, code, count, documents = FIELDS.unpack_from(raw.data, len(MMAP_MAGIC))
    if version != 1 or code not in DTYPES:
        raise DataError(
            f"{path}: version {version}, dtype code {code}; expected version 1 and a code from 1 to 8: "
            "the file is damaged or of a newer format"
        )
    expected = HEADER_BYTES + 12 * count + 8 * documents
    if raw.size not in (expected, expected + count):
        raise DataError(
            f"{path}: has {raw.size:,} bytes, its header ({count:,} sequences, {documents:,} entries of "
            f"the document index) asks for {expected:,}: the file is cut or damaged; copy or make it anew"
        )
    at_pointers = HEADER_BYTES + 4 * count
    at_doc_idx = at_pointers + 8 * count
    return IndexFile(
        DTYPES[code],
        raw[HEADER_BYTES:at_pointers].view("<i4"),
        raw[at_pointers:at_doc_idx].view("<i8"),
        raw[at_doc_idx:expected].view("<i8"),
        pointer_step=DTYPES[code].itemsize,
    )
