"""Input files as chunks of whole lines.

The reading process only cuts at line ends and counts them; all work per document is the workers'.
Only ``\\n`` ends a line: a U+2028 inside a string, or the ``\\r`` before a ``\\n``, does not.

Every chunk says where it ends (:class:`Position`), so that a later run can go on from there, and what
is read can be a part of a file (:class:`Span`), so that several machines can share one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from megatron.errors import DataError
from megatron.preprocessing.formats import (
    ACCEPTED_ENDINGS,
    BYTE_ORDER_MARK,
    STANDARD_INPUT,
    Format,
    Source,
    can_be_read_again,
    is_plain_lines,
    open_input,
    open_text,
    plain_blocks,
    say_what_it_is,
    shown_name,
)
from megatron.preprocessing.parquet import is_parquet, load_pyarrow

__all__ = [
    "ACCEPTED_ENDINGS",
    "CHUNK_BYTES",
    "STANDARD_INPUT",
    "Position",
    "Span",
    "TextChunk",
    "check_inputs",
    "cut",
    "read_chunks",
]

# Text bytes of a chunk. Much larger costs memory per worker and evens out the load less well, much
# smaller costs hand-over time. It changes nothing in the output.
CHUNK_BYTES = 512 * 1024

_COUNT_BYTES = 1024 * 1024


class Position(NamedTuple):
    """Between two lines of the input.

    Attributes:
        span: number of the span, from 0.
        offset: bytes of its text before this place; of a plain file, bytes of the file.
        line: number of the line that follows.
    """

    span: int = 0
    offset: int = 0
    line: int = 1


BEGINNING = Position()


@dataclass(frozen=True)
class Span:
    """A file, or the lines of a plain file that begin in the bytes from ``start`` to ``stop - 1``."""

    path: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class TextChunk:
    """Consecutive whole lines of one input file.

    Attributes:
        path: the file, as messages call it.
        first_line: number of the first line, from 1.
        text: the lines, uncompressed; the last one may lack its newline at the end of the file.
        stored_bytes: bytes of the file on disk that were read for this chunk, for the progress bar.
        end: where the next chunk begins.
        counted_from: lines are counted from the first one that begins at this byte of a plain file.
        unit: what a line stands for in the file.
    """

    path: str
    first_line: int
    text: bytes = field(repr=False)
    stored_bytes: int
    end: Position = BEGINNING
    counted_from: int = 0
    unit: str = "line"

    def place(self, line: int) -> str:
        """File and line for a message. Only here are the lines before a span counted."""
        before = _lines_before(self.path, self.counted_from) if self.counted_from else 0
        return f"{self.path}, {self.unit} {before + line:d}"


def check_inputs(paths: Iterable[str]) -> int:
    """See that every input can be read, before any work starts, and say what is not what it seems.

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
            if not can_be_read_again(path):  # to open a pipe is to read it
                continue
            with open_input(path) as file:
                total += os.fstat(file.fileno()).st_size
                head = Source(file).head
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        say_what_it_is(path, head)
        if is_parquet(head):
            load_pyarrow(path)
    return total


def cut(paths: Iterable[str], parts: int) -> list[tuple[Span, ...]]:
    """The input in ``parts`` parts of about as many bytes on disk; joined, they are all of its lines.

    A file of plain lines is cut anywhere; any other belongs whole to the part that its first byte is in.

    Raises:
        OSError: a file cannot be read.
    """
    if parts == 1:
        return [tuple(Span(path) for path in paths)]
    files: list[tuple[str, int, bool]] = []
    for path in paths:
        with open_input(path) as file:
            size, head = os.fstat(file.fileno()).st_size, Source(file).head
        files.append((path, size, is_plain_lines(path, head)))
    total = sum(size for _, size, _ in files)
    bounds = [total * number // parts for number in range(parts + 1)]
    spans: list[list[Span]] = [[] for _ in range(parts)]
    begin = 0
    for path, size, may_be_cut in files:
        for part, (low, high) in enumerate(pairwise(bounds)):
            start, stop = max(low - begin, 0), min(high - begin, size)
            if may_be_cut and start < stop:
                spans[part].append(Span(path, start, None if stop == size else stop))
            elif not may_be_cut and size and low <= begin < high:
                spans[part].append(Span(path))
        begin += size
    return [tuple(part) for part in spans]


def read_chunks(
    inputs: Iterable[str | Span],
    chunk_bytes: int = CHUNK_BYTES,
    how: Format = Format(),  # noqa: B008 - frozen
    start: Position = BEGINNING,
) -> Iterator[TextChunk]:
    """All lines of all inputs, in order, in chunks of about ``chunk_bytes``; a line is never cut.

    Args:
        inputs: files, or spans of files.
        chunk_bytes: text bytes of a chunk, about.
        how: what to read of them.
        start: where to begin: the ``end`` of a chunk of the same inputs.

    Raises:
        DataError: a file cannot be read, or a compressed one is cut or damaged.
    """
    for number, item in enumerate(inputs):
        if number < start.span:
            continue
        span = Span(item) if isinstance(item, str) else item
        place = start if number == start.span else Position(number)
        try:
            yield from _chunks_of_span(span, place, how, chunk_bytes)
        except OSError as error:
            raise DataError(f"{span.path}: reading failed: {error.strerror or error}") from error


def _chunks_of_span(
    span: Span, start: Position, how: Format, chunk_bytes: int
) -> Iterator[TextChunk]:
    name = shown_name(span.path)
    with open_input(span.path) as file:
        source = Source(file)
        if is_plain_lines(span.path, source.head):
            offset = _go_to(source, span.start, start.offset)
            # A byte order mark belongs to the first line, also where a span ends within it.
            stop = span.stop
            if stop is not None and not span.start and not start.offset:
                stop = max(stop, offset + 1)
            blocks, tell, unit = _lines_until(source, stop), source.tell, "line"
        else:
            text = open_text(file, source, span.path, how)
            offset = start.offset
            blocks, tell, unit = _skip(text.blocks, offset), text.tell, text.unit
        line, position = start.line, tell()
        for lines in _cut_at_line_ends(blocks, chunk_bytes):
            before, position = position, tell()
            first_line, line = line, line + lines.count(b"\n")
            offset += len(lines)
            end = Position(start.span, offset, line)
            yield TextChunk(name, first_line, lines, position - before, end, span.start, unit)


def _go_to(source: Source, first: int, offset: int) -> int:
    """Go to ``offset`` of a plain file, or, where that is 0, to the first line from byte ``first`` on.

    Returns:
        The byte of the file that is read next.
    """
    if not offset and not first:
        return len(BYTE_ORDER_MARK) if source.skip(BYTE_ORDER_MARK) else 0
    if not offset:
        offset = first - 1  # a line begins at `first` if a newline stands before it
        source.seek(offset)
        for block in plain_blocks(source):
            end = block.find(b"\n") + 1
            offset += end or len(block)
            if end:
                break
    source.seek(offset)
    return offset


def _lines_until(source: Source, stop: int | None) -> Iterator[bytes]:
    """From a line's first byte to the end of the last line that begins before byte ``stop``."""
    position = source.tell()
    if stop is not None and position >= stop:
        return
    for block in plain_blocks(source):
        after, position = position, position + len(block)
        if stop is not None and position >= stop:
            end = block.find(b"\n", max(stop - 1 - after, 0))
            if end >= 0:
                yield block[: end + 1]
                return
        yield block


def _skip(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    """``blocks`` without their first ``count`` bytes."""
    for block in blocks:
        if count < len(block):
            yield block[count:]
            break
        count -= len(block)
    yield from blocks


def _lines_before(path: str, first: int) -> int:
    """Lines of a plain file before the first one that begins at byte ``first`` or later."""
    lines, rest = 1, first - 1  # the last of them ends at byte `first - 1` or later
    with open(path, "rb") as file:
        while rest and (block := file.read(min(_COUNT_BYTES, rest))):
            lines += block.count(b"\n")
            rest -= len(block)
    return lines


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
