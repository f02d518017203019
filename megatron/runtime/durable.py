"""Files that are on the disk, whole, before anything says that they are there.

Every byte that must survive a crash goes through :func:`new_file`. Renames become durable only when
the folder that holds the name is flushed too (:func:`sync_folder`).
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Some network and user-space file systems cannot flush a folder; they say so with one of these.
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing from scratch; at the end of the block its bytes are on the disk.

    Raises:
        OSError: with the file's name, also where the system gives none (a full disk, for one), and where
            a library has made a RuntimeError of it, as torch's writer of zip files does.
    """
    try:
        with open(path, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        cause = _os_error_behind(error)
        if cause is None or (cause is error and cause.filename is not None):
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error


def _os_error_behind(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def write_file(path: Path, content: bytes) -> int:
    """Write a whole new file, flushed. Returns its size in bytes."""
    with new_file(path) as file:
        file.write(content)
    return len(content)


def temporary_name(path: Path) -> Path:
    """Where ``path`` is prepared before it is renamed into place, in the same folder."""
    return path.with_name(TEMPORARY_PREFIX + path.name)


def replace_file(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Give ``path`` new content at once: a reader sees the old file or the new one, whole.

    Processes may do so at the same time, of any hosts; the last one's content stays. Without ``flush`` it
    may be cut after a crash of the machine: for what can be found out again.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    # No process number: those of two containers are often the same.
    temporary = temporary_name(path.with_name(f"{path.name}-{secrets.token_hex(8)}"))
    try:
        if flush:
            write_file(temporary, content)
        else:
            temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if flush:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in ``folder`` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(descriptor)
