"""Token files that appear only when they are whole.

While a run works, its files carry names of their own beside the final ones. They are published by
rename, the ``.idx`` last, because without it a ``.bin`` is nothing to anyone. A run that fails takes
its files away and leaves what an earlier run published as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from megatron.data.indexed_dataset import (
    MMapIndexedDatasetBuilder,
    data_file_path,
    index_file_path,
)
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.encoding import PackedDocuments
from megatron.runtime.durable import sync_folder

log = get_logger(__name__)


@dataclass
class _TokenFile:
    """The pair of files of one key, being written."""

    prefix: str
    builder: MMapIndexedDatasetBuilder
    data_partial: str
    index_partial: str


class TokenFileSet:
    """One pair of token files per prefix, published together. A context manager.

    Args:
        prefixes: paths without ``.bin``/``.idx``; their folders are made if need be.
        dtype: the type of a token on disk.
        impl: the form of the files.

    Raises:
        DataError: a folder or a file cannot be made there.
    """

    def __init__(
        self,
        prefixes: Sequence[str],
        dtype: np.dtype[Any],
        impl: Literal["mmap", "cached"] = "mmap",
    ) -> None:
        self._files: list[_TokenFile] = []
        mark = f".partial-{socket.gethostname()}-{os.getpid()}"
        try:
            for prefix in prefixes:
                with errors_name(prefix):
                    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
                    _clear_leftovers(prefix)
                    data, index = data_file_path(prefix), index_file_path(prefix)
                    builder = MMapIndexedDatasetBuilder(data + mark, dtype, impl=impl)
                self._files.append(_TokenFile(prefix, builder, data + mark, index + mark))
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> TokenFileSet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def add(self, documents: Sequence[PackedDocuments]) -> None:
        """Append documents, one :class:`PackedDocuments` for each prefix.

        Raises:
            DataError: they cannot be written.
        """
        for file, packed in zip(self._files, documents, strict=True):
            with errors_name(data_file_path(file.prefix)):
                file.builder.add_documents(packed.tokens, packed.lengths)

    def append_file(self, prefix: str, *, widen: bool = False) -> None:
        """Append all documents of the token file ``prefix`` to each file of the set.

        Args:
            prefix: path without ``.bin``/``.idx``.
            widen: also where its type is narrower.

        Raises:
            DataError: it cannot be read, its type differs, or the documents cannot be written.
        """
        for file in self._files:
            with errors_name(data_file_path(file.prefix)):
                file.builder.merge_file_(prefix, widen=widen)

    def publish(self) -> None:
        """Flush everything to disk and give it its final names, in place of what had them before.

        Raises:
            DataError: it cannot be written.
        """
        for file in self._files:
            with errors_name(file.prefix):
                file.builder.finalize(file.index_partial)
        for file in self._files:
            with errors_name(file.prefix):
                index = index_file_path(file.prefix)
                # Between the two renames no old index must describe the new tokens.
                Path(index).unlink(missing_ok=True)
                os.replace(file.data_partial, data_file_path(file.prefix))
                os.replace(file.index_partial, index)
                sync_folder(Path(index).parent)

    def discard(self) -> None:
        """Take away whatever is not published."""
        for file in self._files:
            with contextlib.suppress(OSError):  # a full disk fails once more when it is flushed
                file.builder.close()
            for path in (file.data_partial, file.index_partial):
                Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
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
