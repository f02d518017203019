"""A verified copy of token files in a folder of its own, with a manifest that says what of.

    folder/tokens.bin, tokens.idx, manifest.json

What is copied is read back from the disk and compared with what was read from the source.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from megatron.data.indexed_dataset import data_file_path, index_file_path
from megatron.data.parallel_read import PIECE, Reading, read_files, write_at
from megatron.data.recipes import hash_of
from megatron.data.stored_arrays import MANIFEST
from megatron.errors import DataError
from megatron.runtime.durable import new_file, sync_folder
from megatron.runtime.node_work import Progress

FORMAT_VERSION: Final = 1
_NAME: Final = "tokens"


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when it was looked at."""

    path: str
    nbytes: int
    mtime_ns: int
    ctime_ns: int  # moves where a copy that was repaired has kept its size and time

    @staticmethod
    def of(path: str) -> SourceFile:
        """Look at a file.

        Raises:
            DataError: it is not there.
        """
        try:
            status = os.stat(path)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from None
        return SourceFile(
            os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


@dataclass(frozen=True)
class Source:
    """Token files to copy."""

    data: SourceFile
    index: SourceFile

    @staticmethod
    def of(prefix: str) -> Source:
        """Look at the two files of ``prefix``.

        Raises:
            DataError: one is not there.
        """
        return Source(SourceFile.of(data_file_path(prefix)), SourceFile.of(index_file_path(prefix)))

    @property
    def key(self) -> str:
        """Another one where path, size or time of change of a file is another."""
        return hash_of([FORMAT_VERSION, asdict(self)])

    @property
    def nbytes(self) -> int:
        """Bytes of both files."""
        return self.data.nbytes + self.index.nbytes


def prefix_in(folder: Path) -> str:
    """The token files of a copy, without their endings."""
    return str(folder / _NAME)


def is_whole(folder: Path) -> bool:
    """Whether ``folder`` holds a manifest and both files, each of its size."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        return len(files) == 2 and all(
            (folder / name).stat().st_size == entry["bytes"] for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def copy(source: Source, folder: Path, progress: Progress) -> None:
    """Fill the empty ``folder``: both files, flushed and compared, and the manifest last.

    Counts every byte twice: once copied, once compared.

    Raises:
        DataError: the source changed meanwhile, or the disk returns something else than was written.
        OSError: the disk is full, or one of both file systems fails.
    """
    prefix = prefix_in(folder)
    targets = {data_file_path(prefix): source.data, index_file_path(prefix): source.index}
    files = {
        os.path.basename(target): _copy_file(file, target, progress.add)
        for target, file in targets.items()
    }
    for file in (source.data, source.index):
        if SourceFile.of(file.path) != file:
            raise DataError(
                f"{file.path}: was changed while it was copied to {folder.parent}\n"
                "  to do: start again when nobody writes to it"
            )
    manifest = {"version": FORMAT_VERSION, "source": asdict(source), "files": files}
    with new_file(folder / MANIFEST) as output:
        output.write((json.dumps(manifest, indent=2) + "\n").encode())
    sync_folder(folder)


def _copy_file(file: SourceFile, target: str, count: Callable[[int], None]) -> dict[str, Any]:
    """Copy one file and read the copy back from the disk; what the manifest says about it."""
    written: dict[int, bytes] = {}
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        if file.nbytes:
            os.posix_fallocate(descriptor, 0, file.nbytes)  # a full disk shows now

        def store(first: int, piece: bytes) -> None:
            write_at(descriptor, piece, first)
            written[first] = hashlib.sha256(piece).digest()

        read_files([Reading(file.path, file.nbytes, store)], count)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or target) from error
    finally:
        os.close(descriptor)

    def compare(first: int, piece: bytes) -> None:
        if hashlib.sha256(piece).digest() != written[first]:
            raise DataError(
                f"{target}: the bytes from {first:,} on are not those that were written: the disk fails\n"
                "  to do: set data_local_cache_dir to another disk, or take it out"
            )

    read_files([Reading(target, file.nbytes, compare)], count)
    digest = hashlib.sha256(b"".join(written[first] for first in sorted(written)))
    return {"bytes": file.nbytes, "piece_bytes": PIECE, "sha256_of_pieces": digest.hexdigest()}
