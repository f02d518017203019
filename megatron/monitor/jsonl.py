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
from pathlib import Path
from typing import BinaryIO

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
            self._file: BinaryIO | None = open(path, "ab")  # noqa: SIM115 (open as long as the run)
            self._drop_torn_line()
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, metrics: Mapping[str, float | int | None]) -> None:
        """Append one row."""
        assert self._file is not None, "this sink is closed"
        row = {name: _json_number(value) for name, value in metrics.items()}
        try:
            self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            self._abandon()
            raise self._unwritable(error) from error

    def cut_after(self, iteration: int) -> None:
        """Remove the rows beyond ``iteration``; all others stay byte for byte.

        Raises:
            NeoXError: a line is not a row of metrics, or the file cannot be written.
        """
        assert self._file is not None, "this sink is closed"
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
            self._file = open(self.path, "ab")  # noqa: SIM115
        except OSError as error:
            raise self._unwritable(error) from error
        log.info("%s: cut %d rows beyond iteration %d", self.path, dropped, iteration)

    def close(self) -> None:
        """Close the file. Every row is there already."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _abandon(self) -> None:
        """Close the file, whose last row could not be written and cannot be flushed either."""
        file, self._file = self._file, None
        assert file is not None
        # Closing tries to flush what is left, fails again, and closes all the same.
        try:
            file.close()
        except OSError as error:
            log.warning("%s: the last row is not written: %s", self.path, error.strerror)

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
            "  to do: make room and allow writing there, or choose another log_dir"
        )


def _json_number(value: float | int | None) -> float | int | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
