"""A sign of life in a file: a counter that a helper process rewrites every two seconds.

A process of its own and no thread, because NumPy shuffles a billion entries without ever letting
another thread of the interpreter run. It ends as soon as its parent does, however that ends: its
standard input is a pipe that then closes. Run as a script, it imports next to nothing and is up in
a few hundredths of a second.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

PERIOD_S = 2.0


class Heartbeat:
    """``with Heartbeat(path):`` keeps the counter in ``path`` running.

    Raises:
        OSError: the file cannot be written, or the helper cannot be started.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _beat(path, 0)
        # -I and -S: no site packages, no environment; the script needs the standard library alone.
        self._helper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the program, which may want to end in order
        )

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the helper; the last count stays in the file."""
        self._helper.kill()
        assert self._helper.stdin is not None
        self._helper.stdin.close()
        self._helper.wait()


def _beat(path: Path | str, count: int) -> None:
    """Write the count in place: always the same length, so that no reader sees half of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.pwrite(descriptor, b"%020d\n" % count, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _main(path: str) -> None:
    count = 0
    while not select.select([0], [], [], PERIOD_S)[0]:  # readable means closed: nobody writes
        count += 1
        # A folder that is gone means that nobody looks any more.
        if not os.path.exists(path):
            return
        _beat(path, count)


if __name__ == "__main__":
    _main(sys.argv[1])
