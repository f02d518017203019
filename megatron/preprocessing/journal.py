"""The journal of work that may be interrupted: up to where files count, and what they are made from.

A line is the CRC-32 of the rest in eight digits, a space, and JSON. The first line is what the work is
made from; every further one is a :class:`Commit`. Nothing is flushed to the disk on the way: what a
crash of the machine tore does not fit its CRC-32, and the work goes on from the last commit that does.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron.preprocessing.readers import Position
from megatron.preprocessing.tally import Tally

_READ_BYTES = 4 * 1024 * 1024
_CRC_DIGITS = 8


@dataclass(frozen=True)
class Written:
    """The bytes of a file that count, and their CRC-32."""

    nbytes: int = 0
    crc: int = 0


@dataclass(frozen=True)
class Commit:
    """A place of the input that is done.

    Attributes:
        end: the place.
        tally: what was counted up to there.
        files: what counts of each file.
        finished: nothing follows.
    """

    end: Position
    tally: Tally
    files: tuple[Written, ...]
    finished: bool = False


def line_of(content: Commit | dict[str, Any]) -> bytes:
    """A line of a journal."""
    fields = asdict(content) if isinstance(content, Commit) else content
    text = json.dumps(fields, ensure_ascii=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read_journal(path: Path) -> tuple[dict[str, Any], list[Commit]] | None:
    """What the work is made from, and its commits; None where not even the first line is whole."""
    rows = [_fields(line) for line in path.read_bytes().split(b"\n")]
    whole = rows[: rows.index(None)]
    if not whole:
        return None
    made_from, *commits = (row for row in whole if row is not None)
    return made_from, [_commit(fields) for fields in commits]


def _fields(line: bytes) -> dict[str, Any] | None:
    digits, text = line[:_CRC_DIGITS], line[_CRC_DIGITS + 1 :]
    if not text or digits != b"%08x" % zlib.crc32(text):
        return None
    fields: dict[str, Any] = json.loads(text)
    return fields


def _commit(fields: dict[str, Any]) -> Commit:
    files = tuple(Written(**file) for file in fields["files"])
    end, tally = Position(*fields["end"]), Tally(**fields["tally"])
    return Commit(end, tally, files, fields["finished"])


def borne_out(commits: Sequence[Commit], paths: Sequence[Path]) -> list[Commit]:
    """The first commits, as far as the files at ``paths`` hold what they say."""
    files = [_Checked(path) for path in paths]
    for number, commit in enumerate(commits):
        if not all(file.holds(part) for file, part in zip(files, commit.files, strict=True)):
            return list(commits[:number])
    return list(commits)


class _Checked:
    """A file that is read once, from front to back, and summed up on the way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nbytes = self._crc = 0

    def holds(self, part: Written) -> bool:
        """Whether the file begins with ``part``, which is no shorter than the last one asked for."""
        if not self._path.is_file():
            return part.nbytes == 0
        with open(self._path, "rb") as file:
            file.seek(self._nbytes)
            while rest := part.nbytes - self._nbytes:
                block = file.read(min(rest, _READ_BYTES))
                if not block:
                    return False
                self._crc = zlib.crc32(block, self._crc)
                self._nbytes += len(block)
        return self._crc == part.crc
