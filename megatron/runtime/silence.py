"""Output that nobody reads any more, as behind ``| head``: it goes nowhere, and is no failure."""

from __future__ import annotations

import os
from typing import IO


def say_no_more(target: IO[str]) -> None:
    """Have ``target``, whose reader has gone, take all that is still written to it, and what it could not
    write, without a word: Python would try again at the process's end, and fail with a traceback.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, target.fileno())
    finally:
        os.close(nowhere)
