"""Memory that several processes of a node share and that has no name: a Linux memory file (memfd).

Its owner keeps the one descriptor; another process opens it through ``/proc/<owner>/fd`` and keeps
only a map. Nothing is listed in ``/dev/shm``, and the memory is free again once the last of these
processes is gone, however it ends: there is nothing that could be left behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.data.mapping import map_descriptor
from megatron.errors import DataError
from megatron.runtime.memory import available_memory

Place = tuple[int, int, int, int]


class MemoryFile:
    """A filled memory file, mapped here. Made by :meth:`make`; pickling sends where it is.

    Attributes:
        content: its bytes, ``[size]``, read-only. The map outlives this object.
        place: what another process of this node makes the same from; on other nodes it means nothing.

    Raises:
        DataError: the owner is gone, or this process may not look at it.
    """

    def __init__(self, owner: int, descriptor: int, inode: int, size: int) -> None:
        self.place: Place = (owner, descriptor, inode, size)
        try:
            opened = os.open(f"/proc/{owner}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(
                f"data_impl: cached: process {owner}, which holds the tokens of this node in memory, "
                f"cannot be reached ({error.strerror}): it has ended, or is of another user or container\n"
                "  to do: run all ranks of a node as one user in one container, or set data_impl: mmap"
            ) from None
        try:
            status = os.fstat(opened)
            if (status.st_ino, status.st_size) != (inode, size):  # the numbers are used anew
                raise DataError(
                    f"data_impl: cached: process {owner} no longer holds the tokens of this node"
                )
            self.content: npt.NDArray[np.uint8] = map_descriptor(opened)
        finally:
            os.close(opened)

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryFile, self.place

    @classmethod
    def make(cls, size: int, fill: Callable[[int], None]) -> MemoryFile:
        """A memory file of ``size`` bytes that ``fill(descriptor)`` writes; nobody can change it then.

        All of it is allocated first: memory that is short is an error here, not a SIGBUS later.

        Raises:
            DataError: there is not enough memory, or the system has no memory files.
        """
        if not hasattr(os, "memfd_create"):
            raise DataError("data_impl: cached needs Linux; set data_impl: mmap")
        available = available_memory()
        if size > available:
            raise _too_little(size, available)
        descriptor = os.memfd_create("neox-tokens", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.posix_fallocate(descriptor, 0, max(1, size))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
                raise _too_little(size, available) from None
            os.ftruncate(descriptor, size)
            fill(descriptor)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            made = cls(os.getpid(), descriptor, os.fstat(descriptor).st_ino, size)
        except BaseException:
            os.close(descriptor)
            raise
        # At the process's end the kernel does it.
        weakref.finalize(made, os.close, descriptor).atexit = False
        return made


def _too_little(size: int, available: int) -> DataError:
    return DataError(
        f"data_impl: cached: the tokens take {size:,} bytes of memory on each node\n"
        f"  found: {available:,} bytes are available\n"
        "  to do: set data_impl: mmap, which reads from the file as it goes, or use nodes with more memory"
    )
