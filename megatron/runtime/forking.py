"""Forked processes that are certain to run: one that is stuck before its first line is forked anew.

A child has one thread, but finds every lock as it was at the moment of the fork. Locks of C libraries
aside, CPython before 3.12 (and before 3.11.10, 3.10.15) waits in the child for one of its own, which
any other thread of the parent may have held: whenever a thread that is not Python's, such as gloo's,
lets go of a tensor, it makes and drops a thread state under that lock
(https://github.com/python/cpython/issues/112275). It is rare, but a large job forks thousands of
children at each start, and one that hangs holds up all ranks.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.popen_fork import Popen
from typing import Any, Final

from megatron.errors import LaunchError

# A child needs a millisecond to say that it runs; a machine that is out of memory may take a while.
PATIENCE_S: Final = 10.0
_ATTEMPTS: Final = 3


class _Process(ForkProcess):
    says_so: int  # the end of a pipe

    def _bootstrap(self, *args: Any, **options: Any) -> int:
        os.write(self.says_so, b".")
        os.close(self.says_so)
        code: int = super()._bootstrap(*args, **options)  # type: ignore[misc]
        return code

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)


class _Popen(Popen):
    def _launch(self, process_obj: _Process) -> None:
        for _ in range(_ATTEMPTS):
            hears, process_obj.says_so = os.pipe()
            super()._launch(process_obj)  # type: ignore[misc]
            os.close(process_obj.says_so)
            # The end of the pipe counts as well: it ran, and is gone.
            runs = wait([hears], PATIENCE_S)
            os.close(hears)
            if runs:
                return
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.close()  # its pipes
        raise LaunchError(
            f"a process that was forked {_ATTEMPTS} times did not run within {PATIENCE_S:g} s each time\n"
            "  often: the machine is out of memory, or a library's lock is held at the fork\n"
            "  to do: num_workers: 0 needs no such processes; Python 3.12 or newer has a lock less"
        )


class SureForkContext(ForkContext):
    """``multiprocessing``'s context ``fork``, for :class:`torch.utils.data.DataLoader` for example.

    Raises, when a process is started:
        LaunchError: it was forked several times and never ran.
    """

    Process = _Process
