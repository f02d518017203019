"""A token file that appears only when it is whole.

While it is written it has names of its own beside the final ones. It is published by rename, the
``.idx`` last, because without it a ``.bin`` is nothing to anyone. Work that fails takes its files away
and leaves what was published before as it was.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from megatron.data.indexed_dataset import (
    MMapIndexedDatasetBuilder,
    data_file_path,
    index_file_path,
)
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.runtime.durable import sync_folder

log = get_logger(__name__)


@contextmanager
def new_token_file(prefix: str, dtype: np.dtype[Any]) -> Iterator[MMapIndexedDatasetBuilder]:
    """What to write the token file ``prefix`` with; at the end of the block it is flushed and published.

    Args:
        prefix: path without ``.bin``/``.idx``; its folder is made if need be.
        dtype: type of a token on disk.

    Raises:
        DataError: it cannot be written.
    """
    index, data = index_file_path(prefix), data_file_path(prefix)
    mark = f".partial-{socket.gethostname()}-{os.getpid()}"
    with errors_name(prefix):
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(prefix)
        try:
            with MMapIndexedDatasetBuilder(data + mark, dtype) as builder:
                yield builder
                builder.finalize(index + mark)
            # Between the two renames no old index must describe the new tokens.
            Path(index).unlink(missing_ok=True)
            os.replace(data + mark, data)
            os.replace(index + mark, index)
            sync_folder(Path(index).parent)
        finally:
            for path in (data + mark, index + mark):
                Path(path).unlink(missing_ok=True)


@contextmanager
def errors_name(path: str) -> Iterator[None]:
    """Turn what the operating system says into an error that names the output."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}\n"
            "  expected: a folder with room where this user may write; see --output-prefix"
        ) from error


def _clear_leftovers(prefix: str) -> None:
    """Remove the files of runs on this host that were killed before they could do it themselves."""
    folder, name = os.path.split(prefix)
    host = re.escape(socket.gethostname())
    pattern = re.compile(rf"{re.escape(name)}\.(?:bin|idx)\.partial-{host}-(\d+)")
    for entry in list(os.scandir(folder or ".")):
        match = pattern.fullmatch(entry.name)
        if match and not _is_alive(int(match[1])):
            log.info("removing %s, left by a run that was killed", entry.path)
            Path(entry.path).unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process
        return True
    return True
