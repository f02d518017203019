"""Gzip files of several members, in which a cut member is an error. Format: RFC 1952."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

from megatron.errors import DataError

_PIECE_BYTES = 16 * 1024
_MAX_BLOCK_BYTES = 1024 * 1024
_MAGIC = b"\x1f\x8b"
_GZIP_FORMAT = zlib.MAX_WBITS | 16


class Readable(Protocol):
    """What is needed of a file."""

    def read(self, size: int, /) -> bytes: ...


def is_gzip(head: bytes) -> bool:
    """Whether a file that starts with the bytes ``head`` is a gzip file."""
    return head.startswith(_MAGIC)


def decompress_members(file: Readable, name: str) -> Iterator[bytes]:
    """The text of all members of ``file``, in blocks of any size above 0.

    Raises:
        DataError: the last member is incomplete, or one is damaged.
    """
    member = None
    members = 0
    while data := file.read(_PIECE_BYTES):
        while data:
            if member is None:
                data = data.lstrip(b"\0")  # padding that archivers leave behind the last member
                if not data:
                    break
                member = zlib.decompressobj(_GZIP_FORMAT)
                members += 1
            try:
                block = member.decompress(data, _MAX_BLOCK_BYTES)
            except zlib.error as error:
                raise DataError(
                    f"{name}: member {members} is damaged: {error}\n"
                    "  expected: a whole gzip file; `gzip --test` says more. Get the file again"
                ) from error
            if member.eof:
                data, member = member.unused_data, None
            else:
                data = member.unconsumed_tail
            if block:
                yield block
    if member is not None:
        raise DataError(
            f"{name}: incomplete: the file ends in the middle of member {members}\n"
            "  expected: a whole gzip file. The copy or the download was cut: get the file again"
        )
