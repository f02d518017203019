"""A polite stop: the first SIGTERM, SIGINT or SIGUSR1 asks; a SIGINT after it ends.

Schedulers send SIGTERM before they kill, people press Ctrl-C. The training loop looks at
:attr:`StopRequest.signal_name` once a step, agrees on it with all ranks, saves and ends.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType


@contextmanager
def handled(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Within the block these signals call ``handler``; behind it they do what they did before."""
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


@contextmanager
def loading() -> Iterator[None]:
    """For a door's imports: Ctrl-C ends the process at once and without a word, and none is garbage.

    An interrupt would come out of the libraries with dozens of lines, and some of them swallow every
    exception. What they define, a million objects, lives as long as the process: the garbage collector
    does not look through it while it grows (a sixth of the time that the imports take), nor ever after
    (each full collection would, amid a training step).
    """
    heard = signal.getsignal(signal.SIGINT)
    mine = (
        heard is signal.default_int_handler
    )  # else somebody has decided, or runs it in the background
    if mine:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
        if mine:
            signal.signal(signal.SIGINT, heard)


def exit_status(returncode: int) -> int:
    """The exit status for a process that ended with ``returncode``: 128 + number where a signal ended it."""
    return returncode if returncode >= 0 else 128 - returncode


class StopRequest:
    """Within ``with StopRequest() as stop:`` remembers which stop signal came.

    The earlier handlers come back at a SIGINT that is not the first signal, which is raised as
    KeyboardInterrupt, and at the end of the block.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._handlers = ExitStack()

    @property
    def asked(self) -> bool:
        return self.signal_name is not None

    def __enter__(self) -> StopRequest:
        self._handlers.enter_context(handled(self.SIGNALS, self._remember))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handlers.close()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            # Whoever presses Ctrl-C twice does not want to wait for a save.
            self._handlers.close()
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
