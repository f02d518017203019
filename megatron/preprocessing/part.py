"""What one part of a run has written so far, on disk, so that a later run goes on from there.

For each token file there is ``NAME.KEY.bin``, the tokens, and ``NAME.KEY.sizes``, i32 tokens of each
document. ``NAME.journal`` says up to where they count (:mod:`megatron.preprocessing.journal`); what
stands behind that was not finished, and is cut off.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from megatron.data.mapping import leave_to_page_cache, map_file
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.encoding import EncodedChunk
from megatron.preprocessing.journal import Commit, Written, borne_out, line_of, read_journal
from megatron.preprocessing.readers import BEGINNING
from megatron.preprocessing.tally import Tally
from megatron.runtime.file_lock import try_lock

log = get_logger(__name__)

# Work that a killed run may lose, in seconds.
COMMIT_SECONDS = 5.0

_BUFFER_BYTES = 1024 * 1024
_COPY_BYTES = 16 * 1024 * 1024


class _GrowingFile:
    """A file that is written at its end, and summed up on the way."""

    def __init__(self, path: Path, written: Written) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=_BUFFER_BYTES)  # noqa: SIM115 - closed below
        self.cut_to(written)

    def cut_to(self, written: Written) -> None:
        self._file.truncate(written.nbytes)
        self._nbytes, self._crc = written.nbytes, written.crc

    def write(self, values: NDArray[Any]) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).data
        self._file.write(data)
        self._nbytes += data.nbytes
        self._crc = zlib.crc32(data, self._crc)

    def flush(self, *, to_disk: bool = False) -> Written:
        self._file.flush()
        if to_disk:
            os.fsync(self._file.fileno())
        return Written(self._nbytes, self._crc)

    def close(self) -> None:
        self._file.close()


class Part:
    """Written by one process at a time.

    Args:
        folder: where its files are.
        name: what their names begin with.
        keys: one for each token file.
        made_from: all that the bytes depend on, by name; values that JSON holds.

    Attributes:
        tally: what was added so far.
        end: the place of the input up to which it was added.
        finished: nothing is to be added any more.

    Raises:
        DataError: another process has it open.
        OSError: it cannot be written.
    """

    def __init__(
        self, folder: Path, name: str, keys: Sequence[str], made_from: dict[str, Any]
    ) -> None:
        self._path, self._made_from = folder / f"{name}.journal", made_from
        self._files: list[_GrowingFile] = []
        self._journal: BinaryIO = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed below
        paths = [folder / f"{name}.{key}.{what}" for key in keys for what in ("bin", "sizes")]
        nothing = Commit(BEGINNING, Tally.zero(len(keys)), (Written(),) * len(paths))
        try:
            if not try_lock(self._journal.fileno()):
                raise DataError(
                    f"{self._path}: another run is at work on it: wait for it or end it"
                )
            self._commits = self._still_good(made_from, paths)
            last = self._commits[-1] if self._commits else nothing
            self._keep_journal(line_of(made_from) + b"".join(map(line_of, self._commits)))
            for path, written in zip(paths, last.files, strict=True):
                self._files.append(_GrowingFile(path, written))
        except BaseException:
            self.close()
            raise
        self.tally, self.end, self.finished = last.tally, last.end, last.finished
        self._committed_at = time.monotonic()
        self._is_torn = False

    def _still_good(self, made_from: dict[str, Any], paths: Sequence[Path]) -> list[Commit]:
        """The commits of an earlier run that this one can go on from; says why where it cannot."""
        found = read_journal(self._path)
        if found is None:
            return []
        before, commits = found
        now = json.loads(json.dumps(made_from))  # a tuple becomes a list
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            names = ", ".join(changed)
            log.warning("%s: made with other %s: starting afresh", self._path, names)
            return []
        good = borne_out(commits, paths)
        if len(good) < len(commits):
            log.warning("%s: its files are torn or damaged: going on from before that", self._path)
        return good

    def _keep_journal(self, good: bytes) -> None:
        """Cut off what does not count; a kill at any time leaves what does."""
        if self._path.read_bytes().startswith(good):
            self._journal.truncate(len(good))
        else:
            self._journal.truncate(0)
            self._journal.write(good)

    @property
    def is_kept(self) -> bool:
        """Whether a later run can go on from what is there."""
        return bool(self._commits)

    def start_afresh(self, why: str) -> None:
        """Forget what an earlier run has done; ``why`` is what was different then."""
        log.warning("%s: made with other %s: starting afresh", self._path, why)
        self._commits = []
        self._keep_journal(line_of(self._made_from))
        for file in self._files:
            file.cut_to(Written())
        self.tally, self.end, self.finished = Tally.zero(len(self._files) // 2), BEGINNING, False

    def add(self, chunk: EncodedChunk) -> None:
        """Append the documents of a chunk; after every few seconds they count.

        Raises:
            OSError: they cannot be written.
        """
        self._is_torn = True  # a signal may end this between any two lines
        for i, packed in enumerate(chunk.keys):
            self._files[2 * i].write(packed.tokens)
            self._files[2 * i + 1].write(packed.lengths.astype("<i4", copy=False))
        self.tally += Tally.of(chunk)
        self.end = chunk.end
        self._is_torn = False
        if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self.commit()

    def commit(self, *, finished: bool = False) -> None:
        """Let count what was added; nothing where only a part of a chunk was.

        Raises:
            OSError: it cannot be written.
        """
        if self._is_torn:
            return
        written = tuple(file.flush() for file in self._files)
        self.finished = finished
        self._commits.append(Commit(self.end, self.tally, written, finished))
        self._journal.write(line_of(self._commits[-1]))
        self._committed_at = time.monotonic()

    def append(self, other: Part) -> None:
        """Append the documents of a finished part, without letting them count.

        Raises:
            OSError: they cannot be copied.
        """
        for mine, its in zip(self._files, other._files, strict=True):
            content = map_file(its.path)
            for at in range(0, content.size, _COPY_BYTES):
                mine.write(content[at : at + _COPY_BYTES])
                leave_to_page_cache(content[at : at + _COPY_BYTES])
        self.tally += other.tally

    def sync(self) -> list[tuple[Path, NDArray[np.int32]]]:
        """Flush to the disk; then of each token file the tokens' path, and the sizes, mapped."""
        for file in self._files:
            file.flush(to_disk=True)
        return [
            (tokens.path, map_file(sizes.path).view("<i4"))
            for tokens, sizes in zip(self._files[::2], self._files[1::2], strict=True)
        ]

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            try:
                file.close()
            except OSError as error:  # a full disk fails once more: what counts is written already
                log.debug("%s: %s", file.path, error)
        self._journal.close()

    def remove(self) -> None:
        """Take the files away, and close."""
        for path in (*(file.path for file in self._files), self._path):
            path.unlink(missing_ok=True)
        self.close()
