"""A worker process: receive a recipe, then answer each chunk with what becomes of it.

It ends when the other end of its connection closes, however the parent ended.
"""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from megatron.errors import NeoXError
from megatron.preprocessing.encoding import ChunkEncoder, EncodedChunk, EncoderRecipe
from megatron.preprocessing.readers import TextChunk


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
    encode: ChunkEncoder | None = None
    while True:
        chunk: TextChunk = connection.recv()
        answer: EncodedChunk | Failure
        try:
            # Built here, so that a failure to build is the answer to the first chunk.
            encode = encode or recipe.build()
            answer = encode(chunk)
        except NeoXError as error:
            answer = Failure(str(error), is_users=True)
        except BaseException:  # noqa: BLE001 - a panic of the Rust tokenizer is no Exception
            text = f"while encoding {chunk!r}:\n{traceback.format_exc()}"
            answer = Failure(text, is_users=False)
        connection.send(answer)
