"""A lock on a file that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os

# File systems that know no locks say so with one of these; there all are taken to be alone.
_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)
_IS_HELD = (errno.EAGAIN, errno.EACCES)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file, for this process alone or for all that want it ``shared``.

    Returns:
        False where another process holds it, or where the file was removed meanwhile.

    Raises:
        OSError: it cannot be locked for another reason.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_nlink > 0
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return True
        if error.errno not in _IS_HELD:
            raise
        return False
