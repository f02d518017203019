"""The configuration that goes with an imported model: a YAML file that a run adds its data to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import yaml

from megatron.tokenizer import padded_vocab_size

_TITLES = (
    ("the model", None),
    (
        "the files: any other numbers of ranks load them too",
        ("precision", "model_parallel_size", "pipe_parallel_size"),
    ),
    ("the text", ("tokenizer_type", "vocab_file", "merge_file")),
    (
        "the weights; a run that goes on from its own checkpoints loads those, without finetune",
        ("load", "finetune"),
    ),
)


def run_file(keys: Mapping[str, Any], source: str) -> str:
    """The text of the file.

    Args:
        keys: what it says.
        source: where the model comes from.
    """
    placed = {key for _, names in _TITLES if names is not None for key in names}
    lines = [
        f"# Made from {source}. Data, optimizer and length of a run go into a file beside this one."
    ]
    for title, names in _TITLES:
        chosen = [key for key in keys if (key in names if names else key not in placed)]
        if not chosen:
            continue
        lines += ["", f"# {title}"]
        lines += [f"{key}: {_value(keys[key])}" for key in chosen]
    if "tokenizer_type" not in keys:
        lines += ["", "# No tokenizer came with it: set tokenizer_type and vocab_file."]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """A value as YAML writes it on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def vocabulary_multiple(ids: int, text_ids: int, model_parallel_size: int) -> int:
    """A ``make_vocab_size_divisible_by`` that leaves room for all rows of an embedding.

    A row of padding would have the logit 0, which a loss counts. So there are none where that can be: the
    tokenizer's ids are rounded up to just the rows that there are. The largest power of two up to 128 that
    does so is taken, else the smallest number; else the smallest power of two that makes room.

    Args:
        ids: rows of the embedding.
        text_ids: ids of the tokenizer.
        model_parallel_size: ranks that share it.
    """
    divisors = (number for number in range(1, ids + 1) if ids % number == 0)
    for multiple in chain((128, 64, 32, 16, 8, 4, 2, 1), divisors):
        rows = {padded_vocab_size(text_ids, multiple, size) for size in (1, model_parallel_size)}
        if rows == {ids}:
            return multiple
    multiple = 1
    while padded_vocab_size(text_ids, multiple) < ids:
        multiple *= 2
    return multiple
