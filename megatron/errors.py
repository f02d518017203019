"""What went wrong, where, and what to do: the errors that a user can cause and mend.

A :class:`NeoXError` is the user's to mend: its text is shown without a traceback. Any other
exception is a fault of this project and keeps its traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable

# So long (seconds) a rank waits before it ends, or speaks, where another one has probably said the
# same: the launcher stops the whole job as soon as the first rank has ended.
_SPEAKER_HEAD_START = 2.0
# And so long one that keeps silent: ranks come to their end seconds apart, and it must not end a node
# whose speaker is still to speak.
_SILENT_WAIT = 3 * _SPEAKER_HEAD_START

# What the collectives' libraries say when a rank at the other end has ended: never the cause itself.
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "remote process exited",
    "Broken pipe",
)

EXIT_USER_ERROR = 2
EXIT_FAULT = 1


class NeoXError(Exception):
    """A mistake in the input, the configuration or the surroundings.

    Args:
        message: where it is, what was found, what was expected and what to do, in at most ten lines.
        everywhere: every rank raises this same error, so that one of them is enough to say it.
    """

    def __init__(self, message: str, *, everywhere: bool = False) -> None:
        super().__init__(message)
        self.everywhere = everywhere


class ConfigError(NeoXError):
    """The configuration cannot be run as it is written."""


class LaunchError(NeoXError):
    """The processes of a run could not be started as asked."""


class DataError(NeoXError):
    """Text, token files or index files are not what they should be."""


class TokenizerError(NeoXError):
    """A vocabulary file is missing, broken or does not fit."""


class BarrierError(NeoXError):
    """What another process should have put on the file system never came, or its builder failed."""


class CheckpointError(NeoXError):
    """A checkpoint cannot be written, or what is there cannot be read."""


class TrainingError(NeoXError):
    """The run itself went wrong: a loss or a gradient that is no number, for example."""


def words_of(error: BaseException) -> str:
    """What to tell others of ``error``: a user's mistake whole, of anything else its kind and first line."""
    if isinstance(error, NeoXError):
        return str(error).strip()
    kind, words = type(error).__name__, first_line(error)
    return f"{kind}: {words}" if words else kind


def first_line(error: BaseException) -> str:
    """The first line of what ``error`` says: behind it libraries in C++ put the frames of their stack."""
    return next(iter(str(error).strip().splitlines()), "")


def run_door(main: Callable[[], int | None]) -> None:
    """Run a program's ``main`` and end the process with a status that tells the truth.

    A :class:`NeoXError` is shown as text, anything else with its traceback; but a rank that only
    notices that another one has ended says so in two lines, after the other has spoken. The process
    then ends at once, without waiting for helper threads or collectives that no peer will ever
    complete.
    """
    try:
        status = main() or 0
    except NeoXError as error:
        rank = os.environ.get("RANK")  # only now: the program may have worked it out itself
        # What all ranks find wrong is said by rank 0, what those of one node find by its first. That one
        # also speaks, later, where rank 0 should have: a file may be missing on one node only.
        is_first, is_nodes_first = rank in (None, "0"), os.environ.get("LOCAL_RANK") == "0"
        speaks = is_first or is_nodes_first or not error.everywhere
        if not speaks:
            time.sleep(_SILENT_WAIT)
        elif not is_first and (error.everywhere or not is_nodes_first):
            time.sleep(_SPEAKER_HEAD_START)
        if speaks:
            where = f"rank {rank}: " if rank is not None and not error.everywhere else ""
            sys.stderr.write(f"{where}error: {error}\n")
        status = EXIT_USER_ERROR
    except KeyboardInterrupt:
        status = 130
    except SystemExit as stop:  # argparse ends this way
        status = stop.code if isinstance(stop.code, int) else EXIT_USER_ERROR
        if isinstance(stop.code, str):
            sys.stderr.write(stop.code + "\n")
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: {error} for {sys.executable}\n"
            "  to do: activate the environment (. .venv/bin/activate; `make install` makes it)\n"
        )
        status = EXIT_USER_ERROR
    except BaseException as error:  # noqa: BLE001 - shown whole, and the status says so
        rank = os.environ.get("RANK")
        prefix = f"rank {rank}: " if rank is not None else ""
        text = _lost_peer_text(error)
        if text is None:
            text = "".join(prefix + line for line in traceback.format_exc().splitlines(True))
        else:
            # A launcher that sees the other rank's end stops this one meanwhile.
            time.sleep(_SPEAKER_HEAD_START)
            text = f"{prefix}error: {text}"
        sys.stderr.write(text)
        status = EXIT_FAULT
    if status == 0:
        # What a successful program has asked for at its end. The interpreter's own end is left out:
        # with torch and DeepSpeed loaded it takes seconds, and frees what ends with the process.
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its reader has gone: the status still tells the truth
            stream.flush()
    os._exit(status)


def is_lost_peer(error: BaseException) -> bool:
    """Whether ``error`` means no more than that another rank has ended."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST_PEER)


def _lost_peer_text(error: BaseException) -> str | None:
    """What to say of an error that means no more than that another rank has ended; else None."""
    if not is_lost_peer(error):
        return None
    return (
        f"another rank of this run has ended\n  found: {first_line(error)[:200]}\n"
        "  to do: see that rank's own message\n"
    )
