"""Writing token files, of either form."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from megatron.data.cached_index import CACHED_DTYPE
from megatron.data.index_file import DTYPES, code_of
from megatron.data.index_writing import write_index
from megatron.data.token_reader import MMapIndexedDataset
from megatron.errors import DataError
from megatron.runtime.durable import new_file

_COPY_BYTES: Final = 16 * 1024 * 1024


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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close ``.bin`` without writing an index."""
        self._file.close()

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
