"""Why a run ends that could have gone on: the first rank that failed, in words for all the others."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from megatron.errors import words_of
from megatron.runtime.peer_link import SILENCE_S

# Characters of an error that go to the others.
_MAX_WORDS = 4000


@dataclass(frozen=True)
class Cause:
    """What has ended one rank.

    Attributes:
        rank: that rank.
        host: name of its host.
        words: what happened, for a reader who sees nothing else.
        said: the rank itself shows it, on its own standard error.
    """

    rank: int
    host: str
    words: str
    said: bool

    def text(self) -> str:
        return f"this run ends: rank {self.rank} on {self.host}: {self.words}\n"


def raised(rank: int, host: str, error: BaseException) -> Cause:
    """The rank left its work with ``error``."""
    return Cause(rank, host, words_of(error)[:_MAX_WORDS], said=True)


def broken(rank: int, host: str, error: OSError | None) -> Cause:
    """The connection to the rank ended without a word: with ``error``, or orderly (None)."""
    number = None if error is None else error.errno
    if number in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN):
        words = f"no answer for {SILENCE_S} s: its host or the network to it is lost"
    else:
        words = "ended without a word: killed? (out of memory, SIGKILL; see the log of its host)"
    return Cause(rank, host, words, said=False)
