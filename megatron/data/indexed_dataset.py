"""Token files: ``prefix.bin`` holds the tokens of all documents, ``prefix.idx`` says where each one is.

Reading and writing; the format itself is in :mod:`megatron.data.index_file`.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from megatron.data.cached_index import CACHED_DTYPE, read_cached_index
from megatron.data.index_file import (
    CACHED_MAGIC,
    DTYPES,
    MMAP_MAGIC,
    best_fitting_dtype,
    code_of,
    data_file_path,
    index_file_path,
    read_index,
    read_magic,
)
from megatron.data.index_writing import write_index
from megatron.data.mapping import leave_to_page_cache, map_file
from megatron.data.memory_file import MemoryFile
from megatron.errors import DataError
from megatron.runtime.durable import new_file

__all__ = [
    "DTYPES",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "MemoryPart",
    "best_fitting_dtype",
    "data_file_path",
    "index_file_path",
    "make_dataset",
]

_COPY_BYTES: Final = 16 * 1024 * 1024
_MOST_TOKENS: Final = 2**31 - 1  # of one sequence: sizes are i32 in the mmap form and in index maps


class MemoryPart(NamedTuple):
    """The place of a dataset's tokens in shared memory: bytes ``first`` … ``first + nbytes - 1``."""

    memory: MemoryFile
    first: int
    nbytes: int


class _State(NamedTuple):
    """Which file it is that a path names, and how large."""

    path: str
    inode: int
    nbytes: int


def _state_of(path: str) -> _State:
    status = os.stat(path)
    return _State(path, status.st_ino, status.st_size)


class MMapIndexedDataset:
    """The sequences of a token file of either form, read through the page cache or from ``part``.

    Opening reads the header alone; it keeps no descriptor open. Pickling sends where the tokens are:
    the prefix, and the place in shared memory, which a process of this node finds while its owner lives.

    Attributes:
        prefix: path without ``.bin``/``.idx``.
        dtype: type of a token on disk.
        sizes: ``[N]`` int32 (cached form: int64), tokens of each sequence.
        pointers: ``[N]`` int64, where each sequence starts in ``.bin``.
        pointer_step: what a pointer grows by for one token: its bytes (cached form: 1).
        doc_idx: ``[D]`` int64, first sequence of each document, and N at the end.
        tokens: ``[tokens]`` of ``dtype``, the whole of ``.bin``.
    """

    def __init__(self, prefix: str | os.PathLike[str], part: MemoryPart | None = None) -> None:
        self.prefix, self._part = os.fspath(prefix), part
        index_path, data_path = index_file_path(self.prefix), data_file_path(self.prefix)
        is_cached = read_magic(index_path).startswith(CACHED_MAGIC)
        index = read_cached_index(index_path) if is_cached else read_index(index_path)
        self.dtype, self.sizes, self.pointers, self.doc_idx, self.pointer_step = index
        end = 0
        if len(self.sizes):
            end = self._first_token(-1) + int(self.sizes[-1])
            end *= self.dtype.itemsize
        self._mapped = [_state_of(index_path)]
        try:
            if part is None:
                self._mapped.append(_state_of(data_path))
                raw = map_file(data_path)
            else:
                raw = part.memory.content[part.first : part.first + part.nbytes]
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

    def __reduce__(self) -> tuple[type[MMapIndexedDataset], tuple[str, MemoryPart | None]]:
        return type(self), (self.prefix, self._part)

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
        return int(self.pointers[number]) // self.pointer_step

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
        first = self._first_token(number)
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

    def check_files(self) -> None:
        """Notice that a file has been cut since it was mapped, before a read past its new end does.

        Such a read ends the process (SIGBUS). A file that was replaced or removed does no harm: what is
        mapped stays.

        Raises:
            DataError: a file has been cut.
        """
        for then in self._mapped:
            try:
                now = _state_of(then.path)
            except OSError:  # removed
                continue
            if now.inode == then.inode and now.nbytes < then.nbytes:
                raise DataError(
                    f"{then.path}: has {now.nbytes:,} bytes now, {then.nbytes:,} when it was opened: it was "
                    "cut while this run reads it\n"
                    "  to do: make the file anew, under another name while a run uses it; then start again"
                )

    def verify(self) -> None:
        """Read the whole ``.idx`` and check that it makes sense.

        Opening checks the end of the file only; readers rely on the rest: sequences follow each other
        in ``.bin`` without gaps, and documents follow each other in the sequences.

        Raises:
            DataError: they do not.
        """
        path, expected = index_file_path(self.prefix), 0
        unit = "token" if self.pointer_step == 1 else "byte"
        step = _COPY_BYTES // 8
        for first in range(0, len(self), step):
            sizes = self.sizes[first : first + step].astype(np.int64) * self.pointer_step
            ends = np.cumsum(sizes) + expected
            bad = np.flatnonzero(
                (self.pointers[first : first + step] != ends - sizes)
                | (sizes < 0)
                | (sizes > _MOST_TOKENS * self.pointer_step)
            )
            if bad.size:
                number = first + int(bad[0])
                raise DataError(
                    f"{path}: sequence {number} has size {int(self.sizes[number])} and starts at {unit} "
                    f"{int(self.pointers[number])}, expected {unit} {int((ends - sizes)[bad[0]])}: the "
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
        for part in (self.sizes, self.pointers, self.doc_idx):
            leave_to_page_cache(part)


def make_dataset(
    path_prefix: str | os.PathLike[str], impl: Literal["infer", "mmap", "cached"] | str = "infer"
) -> MMapIndexedDataset:
    """Open the token files of ``path_prefix``.

    ``mmap`` is for files of that form alone. ``infer`` and ``cached`` look at the magic to tell the
    form; all map the files: who wants them in memory asks :mod:`megatron.data.node_memory` then.

    Raises:
        DataError: nothing is there, it is of a form that cannot be read, or it is damaged.
    """
    path = index_file_path(path_prefix)
    if impl not in ("infer", "mmap", "cached"):
        raise DataError(f"data_impl {impl!r}: expected infer, mmap or cached")
    if impl == "mmap" and read_magic(path).startswith(CACHED_MAGIC):
        raise DataError(
            f"{path}: starts with {CACHED_MAGIC!r}, expected {MMAP_MAGIC!r}: these files are of the cached "
            "form\n  to do: set data_impl to infer, which reads either form, or to cached"
        )
    return MMapIndexedDataset(path_prefix)


class MMapIndexedDatasetBuilder:
    """Write token files: documents one after the other, then :meth:`finalize`.

    Nothing usable exists before :meth:`finalize`, which flushes both files to disk, the index last.
    Write to temporary names and rename for an output that appears at once. As a context manager it
    closes the ``.bin`` file if the block fails. It keeps 12 bytes in memory for each document.

    Args:
        out_file: path of the ``.bin`` file, with its ending.
        dtype: type of a token on disk, one of :data:`DTYPES`; the cached form has int32 alone.
        impl: the form of the files.

    Raises:
        DataError: the form does not have this type.
    """

    def __init__(
        self,
        out_file: str | os.PathLike[str],
        dtype: npt.DTypeLike = "<i4",
        *,
        impl: Literal["mmap", "cached"] = "mmap",
    ) -> None:
        self._code, self._impl = code_of(dtype), impl
        if impl == "cached" and DTYPES[self._code] != CACHED_DTYPE:
            raise DataError(
                f"{os.fspath(out_file)}: the cached form holds int32, not {np.dtype(dtype)}: use int32, "
                "or the mmap form"
            )
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

    def merge_file_(self, another_prefix: str | os.PathLike[str], *, widen: bool = False) -> None:
        """Append all documents of another token file of the same type, or of any narrower if ``widen``.

        Raises:
            DataError: its type differs, or it cannot be read.
        """
        other = MMapIndexedDataset(another_prefix)
        if other.dtype != self.dtype and not (widen and np.can_cast(other.dtype, self.dtype)):
            raise DataError(
                f"{other.prefix}: holds {other.dtype}, {self._path} holds {self.dtype}: token files of "
                "different types cannot be merged; make them anew with the same --dtype"
            )
        first = len(self._sizes)
        step = _COPY_BYTES // self.dtype.itemsize
        for at in range(0, other.num_tokens, step):
            tokens = other.tokens[at : at + step]
            self._file.write(np.ascontiguousarray(tokens, self.dtype).data)
        self._sizes.frombytes(other.sizes.astype(np.int32).tobytes())
        self._doc_idx.frombytes((other.doc_idx[1:] + first).astype(np.int64).tobytes())

    def finalize(self, index_file: str | os.PathLike[str]) -> None:
        """Flush ``.bin`` to disk and write the index beside it; the builder is then closed."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with new_file(Path(index_file)) as file:
            sizes = np.frombuffer(self._sizes, np.int32)
            doc_idx = np.frombuffer(self._doc_idx, np.int64)
            write_index(file, self._impl, self.dtype, sizes, doc_idx)
