"""One rank-aware logger for the whole project.

Modules do ``log = get_logger(__name__)``. Rank 0 speaks at the level INFO, the others from WARNING
on and with their rank in front, until :func:`configure` says otherwise. Lines go to standard output,
so that a run's log is one stream in order; tracebacks and the last words of a failing process go to
standard error (see :mod:`megatron.errors`).
"""

from __future__ import annotations

import logging
import os
import sys

_ROOT = "megatron"


class _Format(logging.Formatter):
    """``2026-01-31 12:00:00 text``, with ``[rank 3]`` and the level's name where they matter."""

    def __init__(self, rank: int) -> None:
        super().__init__(datefmt="%Y-%m-%d %H:%M:%S")
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        rank = f"[rank {self._rank}] " if self._rank else ""
        return f"{self.formatTime(record, self.datefmt)} {rank}{level}{text}"


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; ``name`` is its ``__name__``."""
    return logging.getLogger(name if name.startswith(_ROOT) else f"{_ROOT}.{name}")


def configure(rank: int | None = None, level: int = logging.INFO) -> None:
    """Send this process's log lines to standard output. Calling it again replaces the set-up.

    Args:
        rank: this process's global rank; by default what ``RANK`` says, else 0.
        level: the lowest level that rank 0 shows; other ranks show warnings and errors.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Format(rank))
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level if rank == 0 else max(level, logging.WARNING))
