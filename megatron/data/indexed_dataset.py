"""Token files: ``prefix.bin`` holds the tokens of all documents, ``prefix.idx`` says where each one is.

The ``mmap`` form, bit-compatible with GPT-NeoX both ways (and with Megatron-LM for integer tokens).
Everything is little-endian. The ``.idx`` file is

    magic ``MMIDIDX\\0\\0`` · u64 version 1 · u8 dtype code · u64 N · u64 D
    N × i32 sizes (tokens) · N × i64 pointers (bytes into .bin) · D × i64 document index, from 0 on
    optionally N mode bytes, which Megatron-LM's multimodal files have and which are not used here

and the ``.bin`` file is the tokens, nothing else. Legend: N sequences, D = number of documents + 1.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from megatron.data.mapping import map_file
from megatron.errors import DataError

MMAP_MAGIC: Final = b"MMIDIDX\x00\x00"
CACHED_MAGIC: Final = b"TNTIDX\x00\x00"
_FIELDS: Final = struct.Struct("<QBQQ")  # version, dtype code, N, D
_HEADER_BYTES: Final = len(MMAP_MAGIC) + _FIELDS.size

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
_COPY_BYTES: Final = 16 * 1024 * 1024


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


def _code_of(dtype: npt.DTypeLike) -> int:
    try:
        return _CODES[np.dtype(dtype).newbyteorder("<")]
    except KeyError:
        known = ", ".join(str(known) for known in DTYPES.values())
        raise DataError(
            f"tokens cannot be stored as {np.dtype(dtype)}: expected one of {known}"
        ) from None


class _Index(NamedTuple):
    """What an ``.idx`` file says, as views of its map."""

    dtype: np.dtype[Any]
    sizes: npt.NDArray[np.int32]  # [N] tokens
    pointers: npt.NDArray[np.int64]  # [N] bytes
    doc_idx: npt.NDArray[np.int64]  # [D] numbers of sequences


def _read_magic(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(len(MMAP_MAGIC))
    except FileNotFoundError:
        raise DataError(_missing(path)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _missing(path: str) -> str:
    prefix = path[: -len(".idx")]
    lines = [f"{path}: no such file: a token data set is PREFIX.bin with PREFIX.idx"]
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


def _read_index(path: str) -> _Index:
    """Map an ``.idx`` file and check its header against its own size.

    Raises:
        DataError: it is missing, has another magic, version or dtype, or is cut or too long.
    """
    magic = _read_magic(path)
    if magic != MMAP_MAGIC:
        raise DataError(
            f"{path}: starts with {magic!r}, expected {MMAP_MAGIC!r}: this is no index of the mmap form; "
            "make it anew with tools/datasets/preprocess_data.py --dataset-impl mmap"
        )
    raw = map_file(path)
    if raw.size < _HEADER_BYTES:
        raise DataError(
            f"{path}: has {raw.size} bytes, its header alone takes {_HEADER_BYTES}: the file is cut; "
            "copy or make it anew"
        )
    version, code, count, documents = _FIELDS.unpack_from(raw.data, len(MMAP_MAGIC))
    if version != 1 or code not in DTYPES:
        raise DataError(
            f"{path}: version {version}, dtype code {code}; expected version 1 and a code from 1 to 8: "
            "the file is damaged or of a newer format"
        )
    expected = _HEADER_BYTES + 12 * count + 8 * documents
    if raw.size not in (expected, expected + count):
        raise DataError(
            f"{path}: has {raw.size:,} bytes, its header ({count:,} sequences, {documents:,} entries of "
            f"the document index) asks for {expected:,}: the file is cut or damaged; copy or make it anew"
        )
    at_pointers = _HEADER_BYTES + 4 * count
    at_doc_idx = at_pointers + 8 * count
    return _Index(
        DTYPES[code],
        raw[_HEADER_BYTES:at_pointers].view("<i4"),
        raw[at_pointers:at_doc_idx].view("<i8"),
        raw[at_doc_idx:expected].view("<i8"),
    )


class MMapIndexedDataset:
    """The sequences of a token file, read through the page cache.

    Opening reads the header alone; it keeps no descriptor open. Pickling sends the prefix only.

    Attributes:
        prefix: path without ``.bin``/``.idx``.
        dtype: type of a token on disk.
        sizes: ``[N]`` int32, tokens of each sequence.
        pointers: ``[N]`` int64, first byte of each sequence in ``.bin``.
        doc_idx: ``[D]`` int64, first sequence of each document, and N at the end.
        tokens: ``[tokens]`` of ``dtype``, the whole of ``.bin``.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = os.fspath(prefix)
        index_path, data_path = index_file_path(self.prefix), data_file_path(self.prefix)
        self.dtype, self.sizes, self.pointers, self.doc_idx = _read_index(index_path)
        end = 0
        if len(self.sizes):
            end = int(self.pointers[-1]) + int(self.sizes[-1]) * self.dtype.itemsize
        try:
            raw = map_file(data_path)
        except FileNotFoundError:
            raise DataError(
                f"{data_path}: no such file, but {index_path} is there: copy both, or make both anew"
            ) from None
        except OSError as error:
            raise DataError(f"{data_path}: cannot be mapped: {error.strerror}") from None
        if raw.size != end:
            raise DataError(
                f"{data_path}: has {raw.size:,} bytes, {index_path} asks for {end:,} "
                f"({len(self.sizes):,} sequences of {self.dtype}): the two do not belong together or one "
                "is cut; copy both again, or make both anew"
            )
        self.tokens: npt.NDArray[Any] = raw.view(self.dtype)

    def __reduce__(self) -> tuple[type[MMapIndexedDataset], tuple[str]]:
        return type(self), (self.prefix,)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_tokens(self) -> int:
        """All tokens of the file."""
        return len(self.tokens)

    def tokens_between(self, first: int, stop: int) -> int:
        """Tokens of the sequences ``first`` … ``stop - 1``, without reading their sizes."""
        return self._first_token(stop) - self._first_token(first)

    def _first_token(self, number: int) -> int:
        if number == len(self.sizes):
            return len(self.tokens)
        return int(self.pointers[number]) // self.dtype.itemsize

    def get(
        self, index: int | np.integer[Any], offset: int = 0, length: int | None = None
    ) -> npt.NDArray[Any]:
        """Tokens ``offset`` … ``offset + length - 1`` of sequence ``index`` (to its end by default).

        A read-only view of the file, ``[length]``.

        Raises:
            IndexError: there is no such sequence, or it has no such tokens.
        """
        number = int(index) + len(self.sizes) if index < 0 else int(index)
        if not 0 <= number < len(self.sizes):
            raise IndexError(f"{self.prefix}: sequence {int(index)} of {len(self.sizes)}")
        size = int(self.sizes[number])
        stop = size if length is None else offset + length
        if not 0 <= offset <= stop <= size:
            raise IndexError(
                f"{self.prefix}: tokens {offset} to {stop} of sequence {number}, which has {size}"
            )
        first = int(self.pointers[number]) // self.dtype.itemsize
        return self.tokens[first + offset : first + stop]

    @overload
    def __getitem__(self, i: int | np.integer[Any]) -> npt.NDArray[Any]: ...

    @overload
    def __getitem__(self, i: slice) -> list[npt.NDArray[Any]]: ...

    def __getitem__(
        self, i: int | np.integer[Any] | slice
    ) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        if isinstance(i, slice):
            return [self.get(number) for number in range(*i.indices(len(self)))]
        return self.get(i)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return (self.get(number) for number in range(len(self)))

    def verify(self) -> None:
        """Read the whole ``.idx`` and check that it makes sense.

        Opening checks the end of the file only; readers rely on the rest: sequences follow each other
        in ``.bin`` without gaps, and documents follow each other in the sequences.

        Raises:
            DataError: they do not.
        """
        path, expected = index_file_path(self.prefix), 0
        step = _COPY_BYTES // 8
        for first in range(0, len(self), step):
            sizes = self.sizes[first : first + step].astype(np.int64) * self.dtype.itemsize
            ends = np.cumsum(sizes) + expected
            bad = np.flatnonzero(
                (self.pointers[first : first + step] != ends - sizes) | (sizes < 0)
            )
            if bad.size:
                number = first + int(bad[0])
                raise DataError(
                    f"{path}: sequence {number} has size {int(self.sizes[number])} and starts at byte "
                    f"{int(self.pointers[number])}, expected byte {int((ends - sizes)[bad[0]])}: the "
                    "file is damaged; copy or make it anew"
                )
            expected = int(ends[-1])
        documents = self.doc_idx
        sound = len(documents) > 0 and int(documents[0]) == 0 and int(documents[-1]) == len(self)
        if not sound or bool(np.any(documents[1:] < documents[:-1])):
            raise DataError(
                f"{path}: the document index does not run from 0 to {len(self)}: the file is damaged; "
                "copy or make it anew"
            )


def make_dataset(
    path_prefix: str | os.PathLike[str], impl: Literal["infer", "mmap"] | str = "infer"
) -> MMapIndexedDataset:
    """Open the token files of ``path_prefix``; ``infer`` looks at the magic to tell the form.

    Raises:
        DataError: nothing is there, it is of a form that cannot be read, or it is damaged.
    """
    path = index_file_path(path_prefix)
    if impl not in ("infer", "mmap"):
        raise DataError(f"data_impl {impl!r}: expected infer or mmap")
    if impl == "infer" and _read_magic(path).startswith(CACHED_MAGIC[:-1]):
        raise DataError(
            f"{path}: is of the cached form (TNTIDX), which is not read yet: make the data anew with "
            "tools/datasets/preprocess_data.py --dataset-impl mmap"
        )
    return MMapIndexedDataset(path_prefix)


class MMapIndexedDatasetBuilder:
    """Write token files of the mmap form: documents one after the other, then :meth:`finalize`.

    Nothing usable exists before :meth:`finalize`, which flushes both files to disk, the index last.
    Write to temporary names and rename for an output that appears at once. As a context manager it
    closes the ``.bin`` file if the block fails. It keeps 12 bytes in memory for each document.

    Args:
        out_file: path of the ``.bin`` file, with its ending.
        dtype: type of a token on disk, one of :data:`DTYPES`.
    """

    def __init__(self, out_file: str | os.PathLike[str], dtype: npt.DTypeLike = "<i4") -> None:
        self._code = _code_of(dtype)
        self.dtype = DTYPES[self._code]
        self._path = os.fspath(out_file)
        self._file = open(self._path, "wb", buffering=_COPY_BYTES)  # noqa: SIM115 - closed below
        self._sizes = array("i")
        self._doc_idx = array("q", [0])

    def __enter__(self) -> MMapIndexedDatasetBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close ``.bin`` without writing an index."""
        self._file.close()

    @property
    def num_sequences(self) -> int:
        """Sequences added so far."""
        return len(self._sizes)

    def _checked(self, tokens: npt.ArrayLike) -> npt.NDArray[Any]:
        values = np.asarray(tokens)
        if values.dtype != self.dtype and values.size:
            if self.dtype.kind in "iu":
                limits = np.iinfo(self.dtype)
                lowest, highest = int(values.min()), int(values.max())
                if lowest < limits.min or highest > limits.max:
                    bad = highest if highest > limits.max else lowest
                    raise DataError(
                        f"{self._path}: token id {bad} does not fit into {self.dtype}, which holds "
                        f"{limits.min} to {limits.max}: use a wider type (--dtype int32)"
                    )
            values = values.astype(self.dtype)
        return np.ascontiguousarray(values, self.dtype)

    def add_item(self, tokens: npt.ArrayLike) -> None:
        """Append one sequence, ``[tokens]``.

        Raises:
            DataError: an id does not fit into the type of the file.
        """
        values = self._checked(tokens)
        self._file.write(values.data)
        self._sizes.append(values.size)

    def end_document(self) -> None:
        """The sequences added since the last call are one document."""
        self._doc_idx.append(len(self._sizes))

    def add_documents(self, tokens: npt.ArrayLike, sizes: npt.ArrayLike) -> None:
        """Append many documents of one sequence each: their concatenation and ``[n]`` sizes in tokens."""
        values, lengths = self._checked(tokens), np.asarray(sizes, np.int32)
        assert int(lengths.sum(dtype=np.int64)) == values.size
        first = len(self._sizes) + 1
        self._file.write(values.data)
        self._sizes.frombytes(np.ascontiguousarray(lengths).tobytes())
        self._doc_idx.frombytes(np.arange(first, first + lengths.size, dtype=np.int64).tobytes())

    def merge_file_(self, another_prefix: str | os.PathLike[str]) -> None:
        """Append all documents of another token file of the same type.

        Raises:
            DataError: its type differs, or it cannot be read.
        """
        other = MMapIndexedDataset(another_prefix)
        if other.dtype != self.dtype:
            raise DataError(
                f"{other.prefix}: holds {other.dtype}, {self._path} holds {self.dtype}: token files of "
                "different types cannot be merged; make them anew with the same --dtype"
            )
        first = len(self._sizes)
        step = _COPY_BYTES // self.dtype.itemsize
        for at in range(0, other.num_tokens, step):
            self._file.write(np.ascontiguousarray(other.tokens[at : at + step]).data)
        self._sizes.frombytes(other.sizes.tobytes())
        self._doc_idx.frombytes((other.doc_idx[1:] + first).astype(np.int64).tobytes())

    def finalize(self, index_file: str | os.PathLike[str]) -> None:
        """Flush ``.bin`` to disk and write the index beside it; the builder is then closed."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with open(index_file, "wb", buffering=_COPY_BYTES) as file:
            file.write(MMAP_MAGIC)
            file.write(_FIELDS.pack(1, self._code, len(self._sizes), len(self._doc_idx)))
            file.write(np.frombuffer(self._sizes, np.int32).astype("<i4", copy=False).data)
            for pointers in self._pointers():
                file.write(pointers.data)
            file.write(np.frombuffer(self._doc_idx, np.int64).astype("<i8", copy=False).data)
            file.flush()
            os.fsync(file.fileno())

    def _pointers(self) -> Iterator[npt.NDArray[np.int64]]:
        """The byte that each sequence starts at, in pieces."""
        start = 0
        sizes, step = np.frombuffer(self._sizes, np.int32), _COPY_BYTES // 8
        for first in range(0, len(sizes), step):
            nbytes = sizes[first : first + step].astype(np.int64) * self.dtype.itemsize
            ends = np.cumsum(nbytes) + start
            yield (ends - nbytes).astype("<i8", copy=False)
            start = int(ends[-1])
