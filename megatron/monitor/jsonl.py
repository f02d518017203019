"""``metrics.jsonl``: one JSON object a line, that any tool can read and no kill can spoil.

Floats are written with as many digits as it takes to read the same number back. What JSON has no
number for (infinity, not a number) becomes null. Each row is handed to the system in one piece; a
last line that a kill or a full disk cut short is removed when the file is next opened.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from io import FileIO
from itertools import count
from pathlib import Path

from megatron.errors import NeoXError
from megatron.logging import get_logger

log = get_logger(__name__)

_BLOCK = 64 * 1024


class JsonlSink:
    """Appends rows to one file. Creating it makes the folder and repairs a torn last line.

    Raises:
        NeoXError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: FileIO | None = _open_to_append(path)
            self._drop_torn_line()
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, metrics: Mapping[str, float | int | None]) -> None:
        """Append one row."""
        assert self._file is not None, "this sink is closed"
        row = {name: _json_number(value) for name, value in metrics.items()}
        try:
            # Unbuffered: a failed write leaves nothing behind that closing would try again.
            line = memoryview(json.dumps(row, allow_nan=False).encode() + b"\n")
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._unwritable(error) from error

    def cut_after(self, iteration: int) -> None:
        """Remove the rows beyond ``iteration``; all others stay byte for byte.

        A run that starts from nothing (0) leaves no row to stand: the file of the run before it is
        renamed, since those rows are all that is left of that run.

        Raises:
            NeoXError: a line is not a row of metrics, or the file cannot be written.
        """
        assert self._file is not None, "this sink is closed"
        if iteration == 0:
            self._set_aside()
            return
        kept, dropped = [], 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), start=1):
            if self._iteration_of(line, number) <= iteration:
                kept.append(line)
            else:
                dropped += 1
        if not dropped:
            return
        temporary = self.path.with_name(f".tmp-{self.path.name}")
        try:
            with open(temporary, "wb") as file:
                file.writelines(kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self._file.close()
            self._file = _open_to_append(self.path)
        except OSError as error:
            raise self._unwritable(error) from error
        log.info("%s: cut %d rows beyond iteration %d", self.path, dropped, iteration)

    def close(self) -> None:
        """Close the file. Every row is there already."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _set_aside(self) -> None:
        """Begin an empty file; one with rows becomes ``metrics-1.jsonl``, or the next free number."""
        assert self._file is not None
        if self.path.stat().st_size == 0:
            return
        names = (self.path.with_name(f"{self.path.stem}-{n}{self.path.suffix}") for n in count(1))
        aside = next(path for path in names if not path.exists())
        try:
            self._file.close()
            self.path.rename(aside)
            self._file = _open_to_append(self.path)
        except OSError as error:
            raise self._unwritable(error) from error
        log.info("%s: the rows of an earlier run are now in %s", self.path, aside.name)

    def _drop_torn_line(self) -> None:
        """Cut what follows the last line end: a row that was not written whole."""
        size = self.path.stat().st_size
        end = size
        with open(self.path, "rb") as file:
            while end > 0:
                start = max(0, end - _BLOCK)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                end = start
        if end < size:
            os.truncate(self.path, end)
            log.warning("%s: removed a last row that was cut short", self.path)

    def _iteration_of(self, line: bytes, number: int) -> int:
        try:
            iteration = json.loads(line)["iteration"]
            if isinstance(iteration, int):
                return iteration
            problem = f"iteration {iteration!r}"
        except (ValueError, KeyError, TypeError):
            problem = repr(line[:60].decode(errors="replace"))
        raise NeoXError(
            f"{self.path}, line {number}\n  found: {problem}\n"
            '  expected: a JSON object with a whole number "iteration"\n'
            "  to do: mend the line, or move the file away to start a new one"
        )

    def _unwritable(self, error: OSError) -> NeoXError:
        return NeoXError(
            f"{self.path}: metrics cannot be written there: {error.strerror}\n"
            "  to do: make room and allow writing there, or choose another log_dir (unset: `save`)"
        )


def _open_to_append(path: Path) -> FileIO:
    return open(path, "ab", buffering=0)


def _json_number(value: float | int | None) -> float | int | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
