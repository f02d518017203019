"""A worker process: receive a recipe, then answer each chunk with what becomes of it.

It ends when the other end of its connection closes, however the parent ended.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

from megatron.errors import NeoXError
from megatron.preprocessing.encoding import EncodedChunk, EncoderRecipe
from megatron.preprocessing.readers import TextChunk

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """The answer to a chunk that could not be encoded.

    Attributes:
        text: the user's error as it is to be shown, or a traceback.
        is_users: whether it is the user's to mend, rather than a fault of ours.
    """

    text: str
    is_users: bool


def main(descriptor: int) -> None:
    """Serve the connection whose file descriptor is ``descriptor`` until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    connection = Connection(descriptor)
    try:
        recipe: EncoderRecipe = connection.recv()
        _serve(connection, recipe)
    except (EOFError, ConnectionError):
        return


def _serve(connection: Connection, recipe: EncoderRecipe) -> None:
    # At once, while the parent still prepares; a failure is the answer to each chunk.
    encode = _attempt(recipe.build, "while loading the tokenizer")
    while True:
        chunk: TextChunk = connection.recv()
        answer: EncodedChunk | Failure
        if isinstance(encode, Failure):
            answer = encode
        else:
            answer = _attempt(partial(encode, chunk), f"while encoding {chunk!r}")
        connection.send(answer)


def _attempt(action: Callable[[], T], doing: str) -> T | Failure:
    """What ``action`` returns, or what went wrong in it."""
    try:
        return action()
    except NeoXError as error:
        return Failure(str(error), is_users=True)
    except BaseException:  # noqa: BLE001 - a panic of the Rust tokenizer is no Exception
        return Failure(f"{doing}:\n{traceback.format_exc()}", is_users=False)
