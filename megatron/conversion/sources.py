"""What an import starts from: a model of another program's, its keys in our words, its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron.conversion.comparison import Reference
from megatron.conversion.families import Family
from megatron.conversion.foreign_config import keys_of, not_understood, vocabulary_in
from megatron.conversion.foreign_weights import Tensors
from megatron.conversion.hf_folder import CONFIG_NAME, TensorFolder, read_json
from megatron.errors import CheckpointError

# The types that weights can have in a checkpoint of ours, with our key's value for each.
PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bfloat16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Source:
    """A model of another program's.

    Attributes:
        folder: where it lies.
        family: its row of the table.
        keys: its architecture in keys of ours.
        vocab_size: ids that it knows.
        tensors: its weights.
        dtype: in which they are wanted.
        notes: what a person should know, a line each.
        tokenizer_folder: where its tokenizer's files lie; None where there are none that we read.
        reference: what computes its logits; None for transformers, from the folder.
    """

    folder: Path
    family: Family
    keys: dict[str, Any]
    vocab_size: int
    tensors: Tensors
    dtype: torch.dtype
    notes: tuple[str, ...]
    tokenizer_folder: Path | None
    reference: Reference | None = None


def hf_source(folder: Path, dtype: torch.dtype | None) -> Source:
    """The model in a folder of Hugging Face's.

    Args:
        folder: with ``config.json`` and safetensors.
        dtype: in which weights are wanted; None for that of the files.

    Raises:
        CheckpointError: the folder is not whole, or we have no words for its model.
    """
    path = folder / CONFIG_NAME
    config = read_json(path)
    family, keys = keys_of(config, path)
    tensors = TensorFolder(folder)
    notes = tuple(
        f"{CONFIG_NAME} says {fact}, which is not looked at here: the comparison of logits decides"
        for fact in not_understood(family, config)
    )
    wanted = require_precision(folder, dtype or tensors.dtype)
    ids = vocabulary_in(config, path)
    return Source(folder, family, keys, ids, tensors, wanted, notes, tokenizer_folder=folder)


def require_precision(folder: Path, dtype: torch.dtype) -> torch.dtype:
    """``dtype``, which a checkpoint of ours can have.

    Raises:
        CheckpointError: it cannot.
    """
    if dtype not in PRECISIONS:
        raise CheckpointError(
            f"{folder}\n  found: weights in {str(dtype).removeprefix('torch.')}\n"
            "  expected: fp32, bf16 or fp16\n  to do: name the type to convert them to, with --dtype"
        )
    return dtype
