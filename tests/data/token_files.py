"""Small token files, and the sections of a configuration that read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.data.index_maps import ARRAY_NAMES, IndexShape, build_pieces
from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder
from megatron.neox_arguments.sections.data import DataArgs


def write_documents(
    prefix: Path, documents: Sequence[Sequence[int]], dtype: Any = np.uint16
) -> Path:
    """One sequence a document."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype) as builder:
        for document in documents:
            builder.add_item(document)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
    return prefix


def letters(documents: int, length: int = 11) -> list[list[int]]:
    """Documents that count up through the whole file, so that a token tells where it stands."""
    return [[d * length + t for t in range(length)] for d in range(documents)]


def data_args(prefix: Path, **changes: Any) -> DataArgs:
    return DataArgs(**({"data_path": str(prefix), "split": "1,0,0"} | changes))


def build_arrays(
    shape: IndexShape, sizes: npt.NDArray[np.int32], seed: int
) -> dict[str, npt.NDArray[Any]]:
    """The three arrays that :func:`build_pieces` gives, whole."""
    pieces: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in ARRAY_NAMES}
    for name, piece in build_pieces(shape, sizes, seed):
        pieces[name].append(piece)
    return {name: np.concatenate(pieces[name]) for name in ARRAY_NAMES}
