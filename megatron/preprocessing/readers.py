"""Input files as chunks of whole lines.

The reading process only cuts at line ends and counts them; all work per document is the workers'.
Only ``\\n`` ends a line: a U+2028 inside a string, or the ``\\r`` before a ``\\n``, does not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.gzip_members import decompress_members, is_gzip
from megatron.preprocessing.zstd_frames import decompress_frames, is_zstd

# Text bytes of a chunk. Much larger costs memory per worker and evens out the load less well, much
# smaller costs hand-over time. It changes nothing in the output.
CHUNK_BYTES = 512 * 1024

_KINDS = (".jsonl", ".json", ".txt")
_PACKED = ("", ".zst", ".gz")
ACCEPTED_ENDINGS = tuple(kind + packed for packed in _PACKED for kind in _KINDS)

STANDARD_INPUT = "-"
"""In place of a file: JSON lines, compressed or not."""

log = get_logger(__name__)

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
        if path == STANDARD_INPUT:
            continue
        if not path.lower().endswith(ACCEPTED_ENDINGS):
            raise DataError(
                f"{path}: unknown kind of file; accepted endings are {', '.join(ACCEPTED_ENDINGS)}, "
                "with one JSON object per line; a .txt is one document"
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

    Whether a file is compressed is seen from its first bytes, not from its name. A `.txt` is one line,
    whose key is `text`.

    Raises:
        DataError: a file cannot be read, or a compressed one is cut or damaged.
    """
    for path in paths:
        try:
            with _open(path) as file:
                yield from _chunks_of_file(file, path, chunk_bytes)
        except OSError as error:
            raise DataError(f"{path}: reading failed: {error.strerror or error}") from error


def _open(path: str) -> IO[bytes]:
    if path == STANDARD_INPUT:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return open(path, "rb", buffering=0)


class _Source:
    """A file read once from front to back, a pipe too.

    Attributes:
        head: the first bytes, 4 or more unless there are fewer; :meth:`read` gives them as well.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0
        self.head = b""
        while len(self.head) < 4 and (data := file.read(4 - len(self.head))):
            self.head += data
        self._again = self.head

    def read(self, size: int = -1) -> bytes:
        data, self._again = self._again, b""
        data = data or self._file.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Bytes of the file that were read."""
        return self._position


def _chunks_of_file(file: IO[bytes], path: str, chunk_bytes: int) -> Iterator[TextChunk]:
    source = _Source(file)
    name = "standard input" if path == STANDARD_INPUT else path
    blocks = _without_mark(_blocks(source, name, path))
    if path.lower().removesuffix(".gz").removesuffix(".zst").endswith(".txt"):
        texts = _one_document(blocks, name)
    else:
        texts = _cut_at_line_ends(blocks, chunk_bytes)
    line, position = 1, 0
    for text in texts:
        before, position = position, source.tell()
        yield TextChunk(name, line, text, position - before)
        line += text.count(b"\n")


def _blocks(source: _Source, name: str, path: str) -> Iterator[bytes]:
    """The text, uncompressed as the first bytes demand; said where the name says otherwise."""
    blocks, found = _plain_blocks(source), ""
    if is_zstd(source.head):
        blocks, found = decompress_frames(source, name), ".zst"
    elif is_gzip(source.head):
        blocks, found = decompress_members(source, name), ".gz"
    named = next((ending for ending in _PACKED if ending and path.lower().endswith(ending)), "")
    if found != named and source.head and path != STANDARD_INPUT:
        log.warning("%s: is a %s file whatever its name, and read as that", name, found or "plain")
    return blocks


def _one_document(blocks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The text as one line of JSON; none where it is empty."""
    text = b"".join(blocks)
    try:
        document = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: not UTF-8 at byte {error.start + 1:,}; convert the file first, with iconv"
        ) from error
    if document:
        yield json.dumps({"text": document}, ensure_ascii=False).encode()


def _plain_blocks(file: _Source) -> Iterator[bytes]:
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
