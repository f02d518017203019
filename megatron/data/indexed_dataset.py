"""Token files under the names that GPT-NeoX gives to them.

Reading is in :mod:`megatron.data.token_reader`, writing in :mod:`megatron.data.token_writer`, the format
in :mod:`megatron.data.index_file` and :mod:`megatron.data.cached_index`.
"""

from __future__ import annotations

import os
from typing import Literal

from megatron.data.index_file import (
    CACHED_MAGIC,
    DTYPES,
    MMAP_MAGIC,
    best_fitting_dtype,
    data_file_path,
    index_file_path,
    read_magic,
)
from megatron.data.token_reader import MMapIndexedDataset
from megatron.data.token_writer import MMapIndexedDatasetBuilder
from megatron.errors import DataError

__all__ = [
    "DTYPES",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "best_fitting_dtype",
    "data_file_path",
    "index_file_path",
    "make_dataset",
]


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
