"""Files that are on the disk, whole, before anything says that they are there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# Some network and user-space file systems cannot flush a folder; they say so with one of these.
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing from scratch; at the end of the block its bytes are on the disk."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Give ``path`` new content at once: a reader sees the old file or the new one, whole."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with new_file(temporary) as file:
        file.write(content)
    os.replace(temporary, path)
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
