"""Input files as chunks of whole lines.

The reading process only cuts at line ends and counts them; all work per document is the workers'.
Only ``\\n`` ends a line: a U+2028 inside a string, or the ``\\r`` before a ``\\n``, does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

from megatron.errors import DataError
from megatron.preprocessing.zstd_frames import decompress_frames, is_zstd

# Text bytes of a chunk. Much larger costs memory per worker and evens out the load less well, much
# smaller costs hand-over time. It changes nothing in the output.
CHUNK_BYTES = 512 * 1024

ACCEPTED_ENDINGS = (".jsonl", ".json", ".jsonl.zst", ".json.zst")

_BLOCK_BYTES = 256 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextChunk:
    """Consecutive whole lines of one input file.

    Attributes:
        path: the file, as the user named it.
        first_line: number of the first line, from 1.
        text: the lines, uncompressed; the last one may lack its newline at the end of the file.
        stored_bytes: bytes of the file on disk that were read for this chunk, for the progress bar.
    """

    path: str
    first_line: int
    text: bytes = field(repr=False)
    stored_bytes: int


def check_inputs(paths: Iterable[str]) -> int:
    """See that every input can be read, before any work starts.

    Returns:
        The bytes of all files on disk.

    Raises:
        DataError: a file is missing, is a folder, or its ending is not one of ours.
    """
    total = 0
    for path in paths:
        if not path.lower().endswith(ACCEPTED_ENDINGS):
            raise DataError(
                f"{path}: unknown kind of file; accepted endings are {', '.join(ACCEPTED_ENDINGS)}, "
                "with one JSON object per line"
            )
        if os.path.isdir(path):
            raise DataError(f"{path}: is a folder; name the files in it")
        try:
            with open(path, "rb") as file:
                total += os.fstat(file.fileno()).st_size
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return total


def read_chunks(paths: Iterable[str], chunk_bytes: int = CHUNK_BYTES) -> Iterator[TextChunk]:
    """All lines of all files, in order, in chunks of about ``chunk_bytes``; a line is never cut.

    Whether a file is compressed is seen from its first bytes, not from its name.

    Raises:
        DataError: a file cannot be read, or a compressed one is cut or damaged.
    """
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                yield from _chunks_of_file(file, path, chunk_bytes)
        except OSError as error:
            raise DataError(f"{path}: reading failed: {error.strerror or error}") from error


def _chunks_of_file(file: IO[bytes], path: str, chunk_bytes: int) -> Iterator[TextChunk]:
    head = file.read(4)
    file.seek(0)
    blocks = decompress_frames(file, path) if is_zstd(head) else _plain_blocks(file)
    line, position = 1, 0
    for text in _cut_at_line_ends(_without_mark(blocks), chunk_bytes):
        before, position = position, file.tell()
        yield TextChunk(path, line, text, position - before)
        line += text.count(b"\n")


def _plain_blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        yield block


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out the byte order mark that some editors put in front of UTF-8."""
    head = b""
    for block in blocks:
        head += block
        if len(head) >= len(_BYTE_ORDER_MARK):
            break
    head = head.removeprefix(_BYTE_ORDER_MARK)
    if head:
        yield head
    yield from blocks


def _cut_at_line_ends(blocks: Iterator[bytes], chunk_bytes: int) -> Iterator[bytes]:
    """Join blocks until they hold ``chunk_bytes`` and a line end; cut at the last one."""
    pieces: list[bytes] = []  # joined once, so that a line of any length costs linear time
    size = 0
    for block in blocks:
        size += len(block)
        cut = block.rfind(b"\n") + 1 if size >= chunk_bytes else 0
        if cut:
            pieces.append(block[:cut])
            yield b"".join(pieces)
            pieces, size = [], len(block) - cut
            block = block[cut:]
        if block:
            pieces.append(block)
    if pieces:
        yield b"".join(pieces)
