"""Map a file into memory, read-only, without keeping a file descriptor open.

``mmap.mmap`` and ``np.memmap`` keep one descriptor for each map, so that 300 datasets in 5 processes
run into the limit on open files. ``torch.from_file`` keeps none, but maps privately and writably,
which Linux refuses ("Cannot allocate memory") for a file larger than the machine's memory. The C
library's ``mmap`` has neither fault; POSIX keeps a map alive after its descriptor is closed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


def map_file(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """The bytes of a file, ``[size]``, as a read-only array backed by the page cache.

    The map lives as long as the array or any view of it. Nothing is read before it is touched.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return map_descriptor(descriptor)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int) -> npt.NDArray[np.uint8]:
    """As :func:`map_file`, of an open file; ``descriptor`` may be closed afterwards."""
    size = os.fstat(descriptor).st_size
    if size == 0:  # there is no map of nothing
        return np.frombuffer(b"", np.uint8)
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    owner = (ctypes.c_ubyte * size).from_address(address)
    # At interpreter exit the kernel unmaps: doing it here could pull the memory from under a thread.
    weakref.finalize(owner, _libc.munmap, address, size).atexit = False
    # Every view of the array keeps ``owner`` alive through its chain of bases.
    return np.frombuffer(memoryview(owner).toreadonly(), np.uint8)


def leave_to_page_cache(array: npt.NDArray[Any]) -> None:
    """Stop counting the pages of a mapped ``array`` as memory of this process, after a pass over it.

    Nothing is lost: they stay in the page cache while there is room, and are mapped again when touched.
    """
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    if array.nbytes:
        _libc.madvise(start, array.ctypes.data + array.nbytes - start, mmap.MADV_DONTNEED)
