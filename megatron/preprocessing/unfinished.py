"""The folder ``OUTPUT-PREFIX.partial``: a run's files until they are whole, and what is left of a run
that was interrupted.

It holds the run's parts (:class:`megatron.preprocessing.part.Part`), made by one process or by
several machines. When all are finished, the others are appended to the first, the index files are
written, and ``publish.json`` says which file gets which final name: from then on whoever comes
finishes the renames first. An earlier output keeps its name until then. At the end the folder goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from megatron.data.index_file import data_file_path, index_file_path
from megatron.data.index_writing import write_index
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.output import errors_name
from megatron.preprocessing.part import Part
from megatron.preprocessing.tally import Tally
from megatron.runtime.durable import new_file, replace_file, sync_folder
from megatron.runtime.file_lock import try_lock

log = get_logger(__name__)

_JOURNAL = re.compile(r"part-(\d+)-of-(\d+)\.journal")


@dataclass(frozen=True)
class OutputFile:
    """A pair of token files to make.

    Attributes:
        key: its name within the folder.
        prefix: path without ``.bin``/``.idx``.
        dtype: type of a token on disk.
    """

    key: str
    prefix: str
    dtype: np.dtype[Any]


class Unfinished:
    """The folder, locked. A context manager: it leaves what a later run can go on from.

    Args:
        output_prefix: the folder is ``{output_prefix}.partial``.
        files: what to make.
        impl: the form of the files.
        parts: number of parts.
        alone: False where other processes work on other parts at the same time.
        resumable: False where the input cannot be read a second time: then nothing is left.
        afresh: take away what an interrupted run left, instead of going on from it.

    Raises:
        DataError: another run has the folder, it holds other parts, or it cannot be written.
    """

    def __init__(
        self,
        output_prefix: str,
        files: Sequence[OutputFile],
        impl: Literal["mmap", "cached"],
        parts: int,
        *,
        alone: bool = True,
        resumable: bool = True,
        afresh: bool = False,
    ) -> None:
        self._files, self._impl, self._count = files, impl, parts
        self._alone, self._resumable, self._afresh = alone, resumable, afresh
        self._folder = Path(f"{output_prefix}.partial")
        self._plan = self._folder / "publish.json"
        self._parts: list[Part] = []
        self._lock: BinaryIO | None = None

    def __enter__(self) -> Unfinished:
        with errors_name(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self._folder / "lock", "ab")
            try:
                self._take_over()
            except BaseException:
                self._lock.close()
                raise
        return self

    def _take_over(self) -> None:
        """Lock the folder, and bring it into a state to work in."""
        assert self._lock is not None
        if not try_lock(self._lock.fileno(), shared=not self._alone):
            raise DataError(
                f"{self._folder}: another run is at work on this output: wait for it or end it"
            )
        if self._plan.exists():
            if not self._alone:
                raise DataError(
                    f"{self._folder}: the files of an earlier run are whole, but not all have their "
                    "names yet: give its command again, without --partition"
                )
            log.info("%s: finishing what an earlier run was about to publish", self._folder)
            self._rename(json.loads(self._plan.read_text(encoding="utf-8")))
        found = [m for path in self._folder.iterdir() if (m := _JOURNAL.fullmatch(path.name))]
        other = next((int(m[2]) for m in found if int(m[2]) != self._count), None)
        if other is not None and not self._afresh:
            raise DataError(
                f"{self._folder}: holds work of a run with --partitions {other}, this one has "
                f"{self._count}: give that number to go on from it, or --afresh to begin again"
            )
        if self._alone and (self._afresh or not self._resumable):
            self._remove_files()
        elif self._afresh:  # this run's parts go when they are opened
            for match in found:
                if int(match[2]) != self._count:
                    for path in self._folder.glob(f"part-{match[1]}-of-{match[2]}.*"):
                        path.unlink(missing_ok=True)

    def open_part(self, number: int, made_from: dict[str, Any]) -> Part:
        """Part ``number``, from 0, as far as it is.

        Raises:
            DataError: another process has it, or it cannot be written.
        """
        with errors_name(str(self._folder)):
            name = f"part-{number}-of-{self._count}"
            if self._afresh and not self._alone:
                self._remove_files(f"{name}.*")
            is_new = not any(self._folder.glob(f"{name}.*"))
            try:
                part = Part(self._folder, name, [file.key for file in self._files], made_from)
                self._parts.append(part)
            except BaseException:  # a signal, say: nobody knows the part yet to take it away
                if is_new:
                    self._remove_files(f"{name}.*")
                raise
        return part

    def put_down(self, part: Part) -> None:
        """Close a finished part's files: there may be more parts than files may be open."""
        if part is not self._parts[0]:  # the others are appended to the first
            part.close()

    def tally(self) -> Tally:
        """What all parts count together."""
        return sum((part.tally for part in self._parts[1:]), self._parts[0].tally)

    def give_up(self) -> None:
        """Leave nothing: no later run could do better."""
        self._resumable = False

    def publish(self) -> None:
        """Join all parts and give the files their names, in place of what had them before.

        Raises:
            DataError: they cannot be written.
        """
        first, *others = self._parts
        with errors_name(str(self._folder)):
            for part in others:
                first.append(part)
            names: list[tuple[str, str, str]] = []
            for file, (tokens, sizes) in zip(self._files, first.sync(), strict=True):
                index = self._folder / f"{file.key}.idx"
                with new_file(index) as target:
                    write_index(target, self._impl, file.dtype, sizes)
                names.append((tokens.name, index.name, file.prefix))
            sync_folder(self._folder)
            replace_file(self._plan, json.dumps(names).encode())
            self._rename(names)

    def _rename(self, names: Sequence[Sequence[str]]) -> None:
        """Do what is left of the renames, and take the rest of the folder away."""
        for tokens, index, prefix in names:
            # Between the two renames no old index must describe the new tokens.
            if (self._folder / tokens).exists():
                Path(index_file_path(prefix)).unlink(missing_ok=True)
                os.replace(self._folder / tokens, data_file_path(prefix))
            if (self._folder / index).exists():
                os.replace(self._folder / index, index_file_path(prefix))
        sync_folder(self._folder.parent)
        self._remove_files()

    def __exit__(self, kind: object, *_: object) -> None:
        for part in self._parts:
            self._leave(part, kind is not None)
        self._close()

    def _leave(self, part: Part, failed: bool) -> None:
        if self._plan.exists():  # all is whole: whoever comes finishes the renames
            part.close()
            return
        if failed and part.is_kept and not part.finished:
            with contextlib.suppress(OSError):  # a full disk: what counts is written already
                part.commit()
        if not part.is_kept or not self._resumable:
            part.remove()
            return
        part.close()
        if failed and not part.finished:
            log.info(
                "%s: holds %s documents that are done: the same command goes on from there",
                self._folder,
                f"{max(part.tally.documents):,}",
            )

    def _remove_files(self, pattern: str = "*") -> None:
        for path in self._folder.glob(pattern):
            if path.name != "lock":
                path.unlink()

    def _close(self) -> None:
        """Let go of the folder, and take it away if there is nothing in it."""
        assert self._lock is not None
        if self._alone and [path.name for path in self._folder.iterdir()] == ["lock"]:
            # While the lock is held: whoever opened this file meanwhile finds out that it is gone.
            shutil.rmtree(self._folder)
        self._lock.close()
