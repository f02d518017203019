"""A model that is to be imported: what it is in keys of ours, its tensors, and who computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron.conversion.comparison import Reference, transformers_reference
from megatron.conversion.families import Family
from megatron.conversion.foreign_config import keys_of, not_understood, vocabulary_in
from megatron.conversion.foreign_weights import Tensors
from megatron.conversion.hf_folder import CONFIG_NAME, TensorFolder, read_json
from megatron.conversion.our_checkpoint import DTYPES, PRECISIONS
from megatron.conversion.raw_folder import RawFolder, read_params
from megatron.conversion.raw_llama import RAW_LLAMA, guesses, keys_of_params
from megatron.conversion.raw_reference import RawModel
from megatron.errors import CheckpointError
from megatron.neox_arguments import NeoXArgs


@dataclass(frozen=True)
class Source:
    """Attributes:
    folder: for messages.
    tokenizer_folders: where its tokenizer may lie, the first that has one counts.
    family: of the table.
    keys: the architecture in keys of ours.
    vocab_size: ids of the model.
    tensors: of its files.
    dtype: in which they are wanted.
    notes: what a person should know, a line each.
    """

    folder: Path
    tokenizer_folders: Sequence[Path]
    family: Family
    keys: dict[str, Any]
    vocab_size: int
    tensors: Tensors
    dtype: torch.dtype
    notes: tuple[str, ...]

    @property
    def reference(self) -> Reference:
        """Who computes the model from the same files."""
        if not isinstance(self.tensors, RawFolder):
            return transformers_reference(self.folder, self.dtype)
        model = NeoXArgs.from_dict(self.keys).model
        return Reference("the raw files'", RawModel(self.tensors.shards, model, self.dtype).logits)


def hf_source(folder: Path, dtype: str | None) -> Source:
    """A folder of Hugging Face's.

    Raises:
        CheckpointError: it is not whole, or we have no words for its model.
    """
    path = folder / CONFIG_NAME
    config = read_json(path)
    family, keys = keys_of(config, path)
    tensors = TensorFolder(folder)
    notes = tuple(
        f"{CONFIG_NAME} says {fact}, which is not looked at here: the comparison of logits decides"
        for fact in not_understood(family, config)
    )
    vocab_size = vocabulary_in(config, path)
    stored = _stored(folder, tensors, dtype)
    return Source(folder, (folder,), family, keys, vocab_size, tensors, stored, notes)


def raw_source(
    folder: Path,
    dtype: str | None,
    *,
    parent: Path | None = None,
    max_position_embeddings: int | None = None,
    rope_scaling_factor: float | None = None,
) -> Source:
    """A folder as Llama and Mistral are handed out.

    Args:
        folder: with ``params.json``.
        dtype: as for :func:`hf_source`.
        parent: where the tokenizer may lie too.
        max_position_embeddings, rope_scaling_factor: what no file says, where the usual guess is wrong.

    Raises:
        CheckpointError: it is not whole, or we have no words for its model.
    """
    params = read_params(folder)
    given = {"max_seq_len": max_position_embeddings, "rope_scaling_factor": rope_scaling_factor}
    params.update({name: value for name, value in given.items() if value is not None})
    tensors = RawFolder(folder, params)
    keys = keys_of_params(params, tensors)
    vocab_size = tensors.shape("tok_embeddings.weight")[0]
    stored = _stored(folder, tensors, dtype)
    folders = (folder,) if parent is None else (folder, parent)
    notes = tuple(guesses(params))
    return Source(folder, folders, RAW_LLAMA, keys, vocab_size, tensors, stored, notes)


def _stored(folder: Path, tensors: Tensors, dtype: str | None) -> torch.dtype:
    stored = tensors.dtype if dtype is None else DTYPES[dtype]
    if stored not in PRECISIONS:
        raise CheckpointError(
            f"{folder}\n  found: weights in {str(stored).removeprefix('torch.')}\n"
            "  expected: fp32, bf16 or fp16\n  to do: name the type to convert them to, with --dtype"
        )
    return stored
