"""Parquet files as lines of JSON, through the optional package pyarrow."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from megatron.errors import DataError

# Rows held as Python objects at a time. The library itself holds the pages that they are in.
_ROWS = 256

_MAGIC = b"PAR1"


def is_parquet(head: bytes) -> bool:
    """Whether a file that starts with the bytes ``head`` is a Parquet file."""
    return head.startswith(_MAGIC)


def load_pyarrow(name: str) -> Any:
    """The module that reads Parquet files.

    Raises:
        DataError: the package is not installed; ``name`` is the file that needs it.
    """
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{name}: a Parquet file, which needs the package pyarrow: `pip install pyarrow`"
        ) from error


def parquet_rows(
    file: IO[bytes], name: str, columns: Sequence[str]
) -> tuple[Iterator[bytes], Callable[[], int]]:
    """The rows of ``file`` as lines of JSON, and how many bytes of it were read so far, about.

    Args:
        file: open; it is read in any order.
        name: the file's name, for messages.
        columns: what is read of it; one that the file lacks is a key that its rows lack.

    Raises:
        DataError: pyarrow is missing, or the file is damaged.
    """
    parquet = load_pyarrow(name)
    size = os.fstat(file.fileno()).st_size
    done = total = 0

    def rows() -> Iterator[bytes]:
        nonlocal done, total
        try:
            table = parquet.ParquetFile(name, memory_map=True, pre_buffer=False)
            total = table.metadata.num_rows
            there = set(table.schema_arrow.names)
            wanted = [column for column in columns if column in there]
            for batch in table.iter_batches(batch_size=_ROWS, columns=wanted, use_threads=False):
                lines = [json.dumps(row, ensure_ascii=False) for row in _objects(batch, wanted)]
                done += len(lines)
                yield ("\n".join(lines) + "\n").encode()
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{name}: cannot be read as a Parquet file: {error}\n"
                "  expected: a whole file whose columns of text are strings; get the file again"
            ) from error

    return rows(), lambda: size * done // total if total else 0


def _objects(batch: Any, wanted: Sequence[str]) -> list[dict[str, Any]]:
    # A batch without columns does not say how many rows it has: then none of them has the key.
    return batch.to_pylist() if wanted else [{}] * batch.num_rows
