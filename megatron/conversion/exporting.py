"""From a checkpoint of ours to a folder that transformers loads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.conversion.comparison import TOLERANCE, Comparison, compare, transformers_reference
from megatron.conversion.expressible import family_of
from megatron.conversion.families import Family
from megatron.conversion.hf_folder import CONFIG_NAME, json_bytes
from megatron.conversion.our_checkpoint import DTYPES, Origin, WholeWeights, find_origin
from megatron.conversion.output_folder import made_whole, require_free
from megatron.conversion.parameters import counterpart
from megatron.conversion.shards import write_tensors
from megatron.conversion.sources import hf_source
from megatron.conversion.tokenizer_files import (
    TokenIds,
    token_ids,
    tokenizer_of,
    write_tokenizer,
)
from megatron.errors import CheckpointError, TokenizerError
from megatron.runtime.durable import write_file
from megatron.tokenizer import Tokenizer


@dataclass(frozen=True)
class Wishes:
    """How a checkpoint is exported.

    Attributes:
        dtype: of the files, a key of :data:`~megatron.conversion.our_checkpoint.DTYPES`; None takes the
            precision that the run computed in.
        max_shard_size: bytes of one file at most.
        family: the one to take of several that can express the model; None takes the first.
        with_tokenizer: put the tokenizer's files into the folder.
        tolerance: how far logits may be apart.
    """

    dtype: str | None = None
    max_shard_size: int = 5 * 10**9
    family: str | None = None
    with_tokenizer: bool = True
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Export:
    """What was done.

    Attributes:
        source, target: the checkpoint and the folder.
        family: that the folder is of.
        dtype: of the files.
        written: bytes of tensors.
        vocab_size: ids that are left.
        comparison: of the logits.
        seconds: how long it took.
    """

    source: Path
    target: Path
    family: Family
    dtype: str
    written: int
    vocab_size: int
    comparison: Comparison
    seconds: float

    def text(self) -> str:
        """For people, a fact a line."""
        return (
            f"read     {self.source}\n"
            f"wrote    {self.target}: {self.family.architecture}, {self.vocab_size:,} ids, "
            f"{self.written / 2**20:,.1f} MiB in {self.dtype}, in {self.seconds:.1f} s\n"
            f"compared {self.comparison.text()}"
        )


def export_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    iteration: int | None = None,
    config_files: Sequence[str | Path] = (),
    wishes: Wishes | None = None,
) -> Export:
    """Write the model of a checkpoint as transformers saves one.

    The folder is there whole, compared with the checkpoint, or not at all. It takes the memory of a
    parameter at a time, and for the comparison that of the model in fp32.

    Args:
        source: a run's checkpoints, or one of them, of any layout.
        target: a folder that does not exist yet, or is empty.
        iteration: the step to take instead of the latest.
        config_files: to be read instead of the checkpoint's own configuration.
        wishes: how.

    Raises:
        CheckpointError: there is no whole checkpoint, no family can express the model, the target is
            taken, or the two do not compute the same.
        ConfigError: the configuration is not right.
        TokenizerError: a file of the tokenizer is missing or broken.
    """
    started, wishes = time.perf_counter(), wishes or Wishes()
    final = Path(target).absolute()
    require_free(final, "output_dir", more="; --compare_only compares what is there")
    origin = find_origin(source, iteration, config_files)
    family = family_of(origin.model, wishes.family)
    tokenizer = _tokenizer(origin, wishes)
    weights = WholeWeights(origin.info, origin.model, _vocab_size(origin, tokenizer))
    dtype = DTYPES[wishes.dtype or origin.model.precision]

    with made_whole(final) as folder:
        ids = _write_tokenizer(origin, tokenizer, folder, wishes)
        config = config_of(family, weights, dtype, ids)
        write_file(folder / CONFIG_NAME, json_bytes(config))
        written = _write_weights(folder, family, weights, dtype, wishes.max_shard_size)
        compared = compare(
            origin.model,
            weights.vocab_size,
            weights.read,
            transformers_reference(folder, dtype),
            dtype=dtype,
            tolerance=wishes.tolerance,
        )
    return Export(
        origin.info.path,
        final,
        family,
        _torch_name(dtype),
        written,
        weights.vocab_size,
        compared,
        time.perf_counter() - started,
    )


@dataclass(frozen=True)
class Compared:
    """A checkpoint and a folder that were there, and how far their logits are apart."""

    source: Path
    target: Path
    comparison: Comparison

    def text(self) -> str:
        """For people, a fact a line."""
        return f"read     {self.source}\nread     {self.target}\ncompared {self.comparison.text()}"


def compare_export(
    source: str | Path,
    target: str | Path,
    *,
    iteration: int | None = None,
    config_files: Sequence[str | Path] = (),
    tolerance: float = TOLERANCE,
) -> Compared:
    """Compare a folder of Hugging Face's with a checkpoint, as at the end of an export. Writes nothing.

    Args:
        source, iteration, config_files: as for :func:`export_checkpoint`.
        target: the folder.
        tolerance: how far logits may be apart.

    Raises:
        CheckpointError: one of them cannot be read, they do not compute the same, or nobody here can tell.
        ConfigError: the configuration is not right.
    """
    origin = find_origin(source, iteration, config_files)
    there = hf_source(Path(target), None)
    weights = WholeWeights(origin.info, origin.model, there.vocab_size)
    _require_ids(target, there.vocab_size, origin, weights.vocab_size)
    found = compare(
        origin.model,
        there.vocab_size,
        weights.read,
        there.reference,
        dtype=there.dtype,
        tolerance=tolerance,
        to_do="look whether the folder is of this step (--iteration N); "
        "tools/ckpts/inspect_checkpoints.py compares their weights one by one",
    )
    if found.difference is None:
        raise CheckpointError(found.text())
    return Compared(origin.info.path, Path(target), found)


def _require_ids(target: str | Path, there: int, origin: Origin, rows: int) -> None:
    """Refuse a folder of ``there`` ids that are not all, or more than the ``rows`` that could be read."""
    least = origin.vocab_size or 1
    if not least <= there <= rows:
        wanted = f"{rows:,} at most" if there > rows else f"{least:,}, as its tokenizer has,"
        raise CheckpointError(
            f"{target} does not hold the ids of {origin.info.path}\n  found: {there:,} ids\n"
            f"  expected: {wanted} or the comparison says nothing\n"
            "  to do: look whether the folder is of this run; export it again where ids were cut off"
        )


def _tokenizer(origin: Origin, wishes: Wishes) -> Tokenizer | None:
    """The run's tokenizer; None where it is not wanted and cannot be read."""
    try:
        return tokenizer_of(origin.tokenizer)
    except TokenizerError as error:
        if not wishes.with_tokenizer:
            return None
        raise TokenizerError(
            f"{error}\n  or: convert the weights alone, with --no_save_tokenizer"
        ) from error


def _write_tokenizer(
    origin: Origin, tokenizer: Tokenizer | None, folder: Path, wishes: Wishes
) -> TokenIds:
    """Put the tokenizer's files into ``folder`` where they are wanted; its ids count in any case."""
    if tokenizer is None:
        return TokenIds()
    if not wishes.with_tokenizer:
        return token_ids(origin.tokenizer, tokenizer)
    return write_tokenizer(origin.tokenizer, tokenizer, folder)


def _vocab_size(origin: Origin, tokenizer: Tokenizer | None) -> int | None:
    """Ids that are not padding, where anybody knows."""
    if origin.vocab_size is not None or tokenizer is None:
        return origin.vocab_size
    return tokenizer.vocab_size


def config_of(
    family: Family, weights: WholeWeights, dtype: torch.dtype, ids: TokenIds
) -> dict[str, Any]:
    """The content of ``config.json``: every field that the family has, none left to a default."""
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        "vocab_size": weights.vocab_size,
        # Releases 4 of transformers read the second.
        "dtype": _torch_name(dtype),
        "torch_dtype": _torch_name(dtype),
        **ids.as_dict(),
        **family.write(weights.model),
    }


def _torch_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _write_weights(
    folder: Path, family: Family, weights: WholeWeights, dtype: torch.dtype, max_shard_size: int
) -> int:
    model = weights.model
    places = [counterpart(family, parameter) for parameter in weights.parameters]

    def read(number: int) -> dict[str, Tensor]:
        return places[number].split(model, weights.read(places[number].ours))

    shapes = [place.shapes(model) for place in places]
    return write_tensors(folder, shapes, read, dtype=dtype, max_shard_size=max_shard_size)
