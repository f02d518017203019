"""Lines of JSON → the texts of documents, with file and line in every complaint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from megatron.errors import DataError
from megatron.preprocessing.readers import TextChunk

_EXCERPT_BYTES = 80


class BadLineError(DataError):
    """A line is not a JSON object, or a value is not a string."""


class MissingKeyError(DataError):
    """An object lacks a key."""


@dataclass
class Tolerance:
    """What to leave out instead of stopping, and how often that was done.

    Attributes:
        skip_bad_lines, skip_missing_keys: leave them out; a document goes for all keys together.
        bad_lines, missing_keys: lines that were left out.
    """

    skip_bad_lines: bool = False
    skip_missing_keys: bool = False
    bad_lines: int = 0
    missing_keys: int = 0


def parse_documents(
    chunk: TextChunk, keys: Sequence[str], tolerance: Tolerance | None = None
) -> Iterator[list[str]]:
    """The texts of each document of the chunk, one per key. Lines of white space are no documents.

    Raises:
        DataError: a line is not a JSON object, or a key is missing or no string, and ``tolerance``
            does not say to skip it.
    """
    tolerance = tolerance or Tolerance()
    for number, line in enumerate(chunk.text.split(b"\n"), start=chunk.first_line):
        if not line or line.isspace():
            continue
        try:
            row = _parse_row(line)
            texts = [_text_of(row, key) for key in keys]
        except BadLineError as error:
            if not tolerance.skip_bad_lines:
                raise BadLineError(f"{chunk.place(number)}: {error}") from error
            tolerance.bad_lines += 1
        except MissingKeyError as error:
            if not tolerance.skip_missing_keys:
                raise MissingKeyError(f"{chunk.place(number)}: {error}") from error
            tolerance.missing_keys += 1
        else:
            yield texts


def _parse_row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start + 1:,} of the line"
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg} at column {error.colno:,}"
    except (ValueError, RecursionError) as error:  # numbers or nesting beyond what Python reads
        problem = f"not readable as JSON: {error}"
    else:
        if isinstance(row, dict):
            return row
        problem = f"a JSON {type(row).__name__}, not an object"
    raise BadLineError(
        f"{problem}\n  found: {_excerpt(line)}\n"
        '  expected: one object per line, such as {"text": "Once upon a time"}'
    )


def _text_of(row: dict[str, Any], key: str) -> str:
    try:
        text = row[key]
    except KeyError:
        found = ", ".join(map(repr, list(row)[:8])) or "none"
        raise MissingKeyError(
            f"no key {key!r}\n  found: {found}{' …' if len(row) > 8 else ''}\n"
            "  expected: every object to have it; --jsonl-keys names the keys that hold text, and "
            "--on-missing-key skip leaves such lines out"
        ) from None
    if not isinstance(text, str):
        excerpt = json.dumps(text)[:_EXCERPT_BYTES]
        raise BadLineError(
            f"the value of {key!r} is not a string\n  found: {excerpt}\n"
            "  expected: the text of a document; --jsonl-keys names the keys that hold text"
        )
    return text


def _excerpt(line: bytes) -> str:
    shown = line[:_EXCERPT_BYTES].decode("utf-8", errors="replace").rstrip("\r")
    return f"{shown} … ({len(line):,} bytes)" if len(line) > _EXCERPT_BYTES else shown


def replace_lone_surrogates(text: str) -> str:
    """``text`` with U+FFFD for each half of a surrogate pair that stands alone.

    JSON can spell them (``"\\\\ud800"``), but they are no characters and have no UTF-8. Returns the
    very same object when there is nothing to replace.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", "replace")
    return text
