"""What an input file is, and its text as lines of JSON, whatever it is.

The first bytes of a file say whether it is compressed, or Parquet, not its name; where the two
disagree that is said. Whether a plain text is lines of JSON or prose, only the name can tell (.txt).
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.gzip_members import decompress_members, is_gzip
from megatron.preprocessing.parquet import is_parquet, parquet_rows
from megatron.preprocessing.zstd_frames import decompress_frames, is_zstd

STANDARD_INPUT = "-"
"""In place of a file: JSON lines, compressed or not."""

_KINDS = (".jsonl", ".json", ".txt")
_PACKED = ("", ".zst", ".gz")
_PARQUET = ".parquet"
ACCEPTED_ENDINGS = (*(kind + packed for packed in _PACKED for kind in _KINDS), _PARQUET)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_BLOCK_BYTES = 256 * 1024

log = get_logger(__name__)


@dataclass(frozen=True)
class Format:
    """How files are to be read.

    Attributes:
        columns: the keys that hold text: the columns of a Parquet file that are read.
        separator: what stands between the documents of a .txt; None where it is one document.
    """

    columns: tuple[str, ...] = ("text",)
    separator: str | None = None


@dataclass(frozen=True)
class Text:
    """The text of an open file.

    Attributes:
        blocks: its bytes as lines of JSON, in blocks of any size, without a byte order mark.
        tell: bytes of the file on disk that were read so far.
        unit: what a line stands for in the file.
    """

    blocks: Iterator[bytes]
    tell: Callable[[], int]
    unit: str = "line"


class Source:
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

    def skip(self, mark: bytes) -> bool:
        """Leave out ``mark``, of 4 bytes at most, if the file begins with it and none of it was read."""
        if not self._again.startswith(mark):
            return False
        self._again = self._again[len(mark) :]
        self._position += len(mark)
        return True

    def seek(self, offset: int) -> None:
        """Go on at byte ``offset`` of a file that is no pipe."""
        self._file.seek(offset)
        self._again, self._position = b"", offset

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._position


def open_input(path: str) -> IO[bytes]:
    """The file, unbuffered."""
    if path == STANDARD_INPUT:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return open(path, "rb", buffering=0)


def can_be_read_again(path: str) -> bool:
    """Whether the input is a file on a disk, rather than standard input or a pipe.

    Raises:
        OSError: there is no such file.
    """
    return path != STANDARD_INPUT and stat.S_ISREG(os.stat(path).st_mode)


def shown_name(path: str) -> str:
    """The input as messages call it."""
    return "standard input" if path == STANDARD_INPUT else path


def is_plain_lines(path: str, head: bytes) -> bool:
    """Whether the file is lines of JSON as they are, so that it can be read from any line on."""
    packed = is_zstd(head) or is_gzip(head) or is_parquet(head)
    return path != STANDARD_INPUT and not packed and not _is_prose(path)


def say_what_it_is(path: str, head: bytes) -> None:
    """Warn where the first bytes of a file, ``head``, are not what its name promises."""
    kinds = {".zst": is_zstd(head), ".gz": is_gzip(head), _PARQUET: is_parquet(head)}
    found = next((ending for ending, is_so in kinds.items() if is_so), "")
    named = next((ending for ending in kinds if path.lower().endswith(ending)), "")
    if found != named and head and path != STANDARD_INPUT:
        log.warning("%s: is a %s file whatever its name, and read as that", path, found or "plain")


def open_text(file: IO[bytes], source: Source, path: str, how: Format) -> Text:
    """The text of ``file``, of which ``source`` has read the head."""
    name = shown_name(path)
    if is_parquet(source.head):
        if path == STANDARD_INPUT:
            raise DataError(
                "standard input: a Parquet file has to be named: it is read from its end"
            )
        return Text(*parquet_rows(file, name, how.columns), "row")
    blocks = _without_mark(_uncompressed(source, name))
    if not _is_prose(path):
        return Text(blocks, source.tell)
    if how.separator is None:
        return Text(_lines_of([b"".join(blocks)], name), source.tell, "document")
    pieces = split_at(blocks, how.separator.encode())
    return Text(_lines_of(pieces, name), source.tell, "document")


def _is_prose(path: str) -> bool:
    return path.lower().removesuffix(".gz").removesuffix(".zst").endswith(".txt")


def _uncompressed(source: Source, name: str) -> Iterator[bytes]:
    if is_zstd(source.head):
        return decompress_frames(source, name)
    if is_gzip(source.head):
        return decompress_members(source, name)
    return plain_blocks(source)


def plain_blocks(source: Source) -> Iterator[bytes]:
    """The file as it is, from where it stands on."""
    while block := source.read(_BLOCK_BYTES):
        yield block


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out the byte order mark that some editors put in front of UTF-8."""
    head = b""
    for block in blocks:
        head += block
        if len(head) >= len(BYTE_ORDER_MARK):
            break
    head = head.removeprefix(BYTE_ORDER_MARK)
    if head:
        yield head
    yield from blocks


def split_at(blocks: Iterator[bytes], separator: bytes) -> Iterator[bytes]:
    """What stands between the separators; holds no more than one piece and one block."""
    pieces: list[bytes] = []  # joined once, so that a piece of any length costs linear time
    tail = b""  # the last bytes of a piece, in which a separator may have begun
    keep = len(separator) - 1
    for block in blocks:
        *whole, rest = (tail + block).split(separator)
        for part in whole:
            yield b"".join((*pieces, part))
            pieces = []
        cut = max(0, len(rest) - keep)
        pieces.append(rest[:cut])
        tail = rest[cut:]
    yield b"".join((*pieces, tail))


def _lines_of(documents: Sequence[bytes] | Iterator[bytes], name: str) -> Iterator[bytes]:
    """Prose as lines of JSON, whose key is `text`; nothing for an empty document."""
    for number, document in enumerate(documents, start=1):
        try:
            text = document.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: not UTF-8 at byte {error.start + 1:,} of document {number:,}; convert the "
                "file first, with iconv"
            ) from error
        if text:
            yield json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
