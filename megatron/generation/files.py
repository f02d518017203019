"""Prompts from a file, samples into one: GPT-NeoX's form, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from megatron.errors import DataError
from megatron.generation.engine import Sample


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file, one a line, without surrounding blanks; blank lines are left out.

    The mark that some editors put in front of a UTF-8 file belongs to no prompt.

    Raises:
        DataError: there is no such file, it is not UTF-8 text, or it holds no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").removeprefix("\ufeff").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start:,} is not UTF-8 text: {error.reason}"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot read the prompts: {error.strerror}\n"
            "  to do: set sample_input_file (or -i) to a text file with one prompt a line"
        ) from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise DataError(f"{path}: 0 prompts found: expected one a line")
    return prompts


@contextmanager
def open_output(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name only when all samples are in it.

    Until then they are in ``<name>.part`` beside it, each line whole as soon as it is there.

    Raises:
        DataError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot write the samples: {error.strerror}\n"
            "  to do: set sample_output_file (or -o) to a place that can be written"
        ) from error


def write_sample(file: TextIO, sample: Sample) -> None:
    """Add one line: context, text, length, finished, message, duration_seconds, and logits if any."""
    record: dict[str, object] = {
        "context": sample.context,
        "text": sample.text,
        "length": sample.length,
        "finished": sample.finished,
        "message": sample.message,
        "duration_seconds": sample.duration_seconds,
    }
    if sample.logits is not None:
        record["logits"] = sample.logits
    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    file.flush()
