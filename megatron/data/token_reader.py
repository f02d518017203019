"""Reading token files: ``prefix.bin`` holds the tokens of all documents, ``prefix.idx`` where each is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from megatron.data.cached_index import read_cached_index
from megatron.data.index_file import (
    CACHED_MAGIC,
    data_file_path,
    index_file_path,
    read_index,
    read_magic,
)
from megatron.data.mapping import leave_to_page_cache, map_file
from megatron.data.memory_file import MemoryFile
from megatron.errors import DataError

_LOOKED_AT: Final = 1 << 21  # sequences checked at once
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
        for first in range(0, len(self), _LOOKED_AT):
            sizes = self.sizes[first : first + _LOOKED_AT].astype(np.int64) * self.pointer_step
            ends = np.cumsum(sizes) + expected
            bad = np.flatnonzero(
                (self.pointers[first : first + _LOOKED_AT] != ends - sizes)
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
