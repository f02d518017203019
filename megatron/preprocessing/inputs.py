"""What the values of ``--input`` name: files, comma lists, folders, patterns, standard input."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.formats import ACCEPTED_ENDINGS, STANDARD_INPUT

log = get_logger(__name__)


def input_files(values: Sequence[str]) -> tuple[str, ...]:
    """The files that the values of ``--input`` name, in the order of the values.

    A folder stands for all files below it with an accepted ending, a pattern (``*``, ``?``, ``[``,
    ``**`` for any depth) for what fits it; both sorted by path, character by character, so that the
    order is the same everywhere. A name that exists is never taken for a list or a pattern.

    Raises:
        DataError: a folder or pattern holds no file.
    """
    files = tuple(file for value in values for name in _names(value) for file in _files(name))
    twice = [file for file, count in Counter(files).items() if count > 1]
    if twice:
        log.warning(
            "--input names %s more than once%s: its documents are written as often",
            twice[0],
            f", and {len(twice) - 1} others" if len(twice) > 1 else "",
        )
    return files


def _names(value: str) -> Iterator[str]:
    if os.path.exists(value):
        yield value
    else:
        yield from (name for name in value.split(",") if name)


def _files(name: str) -> Iterator[str]:
    if name == STANDARD_INPUT or os.path.isfile(name):
        yield name
    elif os.path.isdir(name):
        yield from _required(name, _below(name))
    elif glob.has_magic(name):
        fitting = (path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
        yield from _required(name, fitting)
    else:
        yield name  # named in the complaint of whoever opens it


def _below(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if name.lower().endswith(ACCEPTED_ENDINGS) and not name.startswith("."):
                yield os.path.join(path, name)


def _required(name: str, files: Iterator[str]) -> list[str]:
    found = sorted(files)
    if not found:
        raise DataError(
            f"--input {name}: holds no file to read; accepted endings are "
            f"{', '.join(ACCEPTED_ENDINGS)}"
        )
    return found
