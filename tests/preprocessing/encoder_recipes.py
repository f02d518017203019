"""Recipes for the pool's tests; worker processes import them from here."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from megatron.errors import DataError
from megatron.preprocessing.encoding import ChunkEncoder, EncodedChunk, PackedDocuments
from megatron.preprocessing.readers import TextChunk


@dataclass(frozen=True)
class Scripted:
    """A worker that does what the text of its chunk says, and answers with the chunk's number."""

    builds: bool = True

    def build(self) -> ChunkEncoder:
        if not self.builds:
            raise DataError("no tokenizer today")
        return act


def act(chunk: TextChunk) -> EncodedChunk:
    match chunk.text.split():
        case [b"sleep", seconds]:
            time.sleep(float(seconds))
        case [b"user-error", text]:
            raise DataError(text.decode())
        case [b"fault"]:
            raise ZeroDivisionError("a fault of ours")
        case [b"die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case [b"exit"]:
            os._exit(3)
    number = np.array([chunk.first_line], dtype=np.int64)
    packed = PackedDocuments(number, np.ones(1, np.int32), 0)
    return EncodedChunk((packed,), len(chunk.text), chunk.stored_bytes, 0)
