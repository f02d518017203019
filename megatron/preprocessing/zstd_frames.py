"""Zstandard streams of several frames, in which a cut frame is an error.

The library's own readers stop at the end of the first frame, or take a cut one for the end of the
text; both lose documents without a word. Format: RFC 8878.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import zstandard

from megatron.errors import DataError

# Compressed bytes fed at a time. Small, because what comes out at once can be thousands of times more.
_PIECE_BYTES = 16 * 1024

# Frames made with `zstd --long=31`, the longest window there is.
_MAX_WINDOW_BYTES = 1 << 31

_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    """What is needed of a file."""

    def read(self, size: int, /) -> bytes: ...

    def tell(self) -> int: ...


def is_zstd(head: bytes) -> bool:
    """Whether a file that starts with the bytes ``head`` (4 or more) is a zstandard stream."""
    skippable = len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == b"\x2a\x4d\x18"
    return head.startswith(_FRAME_MAGIC) or skippable


def decompress_frames(file: Readable, name: str) -> Iterator[bytes]:
    """The text of all frames of ``file``, in blocks of any size above 0.

    Args:
        file: open at the first frame.
        name: the file's name, for messages.

    Raises:
        DataError: the last frame is incomplete, or the stream is damaged.
    """
    context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame = None
    frames = 0
    while data := file.read(_PIECE_BYTES):
        while data:
            if frame is None:
                frame = context.decompressobj()
                frames += 1
            try:
                block = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise DataError(
                    f"{name}: frame {frames} is damaged, before byte {file.tell():,} of the file: "
                    f"{error}\n  expected: a whole zstandard file; `zstd --test` says more. Get the "
                    "file again"
                ) from error
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
            if block:
                yield block
    if frame is not None:
        raise DataError(
            f"{name}: incomplete: the file ends after {file.tell():,} bytes in the middle of frame "
            f"{frames}\n  expected: a whole zstandard file. The copy or the download was cut: get the "
            "file again"
        )
