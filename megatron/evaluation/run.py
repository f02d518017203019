"""``eval.py``: the score of a checkpoint on a split of the run's data, or on any token file."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from megatron.data.boundaries import Boundaries
from megatron.data.indexed_dataset import MMapIndexedDataset, make_dataset
from megatron.data.splits import split_boundaries
from megatron.data.vocabulary import check_token_ids
from megatron.errors import ConfigError, DataError
from megatron.evaluation.perplexity import Score, score_documents
from megatron.evaluation.windows import Windows
from megatron.logging import get_logger
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import DATA_PATHS, told_where
from megatron.runtime.durable import replace_file
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts

log = get_logger(__name__)

SPLITS = ("train", "valid", "test")

# Where the configuration does not say what fits into memory (train_micro_batch_size_per_gpu).
WINDOWS_AT_ONCE = 4


def add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``eval.py`` beside those of the configuration."""
    parser.add_argument(
        "--split",
        choices=SPLITS,
        default="valid",
        help="which part of the data: of data_path as `split` divides it, or the one of *_data_paths "
        "(default: valid)",
    )
    parser.add_argument(
        "--data", metavar="PREFIX", help="score the whole token file PREFIX.bin/.idx instead"
    )
    parser.add_argument("--output", type=Path, help="write the score there too, as JSON")


def run_evaluation(args: NeoXArgs, world: World, asked: argparse.Namespace) -> str | None:
    """Score the checkpoint that ``load`` names; the text to show on rank 0, None elsewhere.

    Raises:
        NeoXError: there is no such checkpoint, or nothing to score.
    """
    started = time.monotonic()
    if asked.output is not None and world.is_first:
        _check_output(asked.output)
    parts = build_parts(args, world)
    with told_where(args, *DATA_PATHS):
        name, documents, first, last = _choose(args, asked)
    log.info("scoring %s: %s documents", name, f"{last - first:,}")
    # An id past the vocabulary would crash on the way, or mean another token.
    start, count = documents.tokens_between(0, first), documents.tokens_between(first, last)
    check_token_ids(
        documents,
        start,
        documents.tokens[start : start + count],
        parts.tokenizer.vocab_size,
        everywhere=True,
    )
    windows = Windows(
        documents,
        first,
        last,
        seq_length=args.model.seq_length,
        boundaries=Boundaries.of(args.data),
    )
    if len(windows) == 0:
        raise DataError(
            f"{name}: holds {windows.num_tokens} tokens: there is nothing to predict",
            everywhere=True,
        )
    # Windows are of seq_length tokens.
    model, found = load_trained_model(args, parts, shares_sequences=True)
    score = score_documents(
        model,
        windows,
        tokenizer=parts.tokenizer,
        groups=parts.groups,
        device=parts.device,
        micro_batch_size=args.batch.train_micro_batch_size_per_gpu or WINDOWS_AT_ONCE,
    )
    if not world.is_first:
        return None
    facts = {"iteration": found.step, "data": name} | score.as_dict()
    if asked.output is not None:
        replace_file(asked.output, (json.dumps(facts, indent=2) + "\n").encode())
    return _text(score, f"step {found.step:,} on {name}", time.monotonic() - started)


def _check_output(path: Path) -> None:
    """Find out before the work, not after it, whether the score can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = "" if os.access(path.parent, os.W_OK) else "its folder is not writable"
    except OSError as error:
        found = str(error.strerror)
    if path.is_dir():
        found = "it is a folder"
    if found:
        raise DataError(
            f"--output {path}: cannot be written: {found}\n  to do: choose another file"
        )


def _choose(args: NeoXArgs, asked: argparse.Namespace) -> tuple[str, MMapIndexedDataset, int, int]:
    """A name for people, the token file, and the range of its documents."""
    named: Sequence[str] = getattr(args.data, f"{asked.split}_data_paths") or ()
    # A list of one is the whole of that file.
    whole = asked.data or (named[0] if len(named) == 1 else None)
    prefix = whole or args.data.data_path
    if prefix is None:
        why = f"{asked.split}_data_paths names several: " if named else "set data_path, or "
        raise ConfigError(f"nothing to score: {why}pass --data PREFIX", everywhere=True)
    # Each token is read once, in order: mapped, also where training would hold the file in memory.
    documents = make_dataset(prefix, args.data.data_impl)
    if whole:
        return whole, documents, 0, len(documents)
    bounds = split_boundaries(args.data.split, len(documents))
    number = SPLITS.index(asked.split)
    first, last = bounds[number], bounds[number + 1]
    if first == last:
        raise DataError(
            f"the split {asked.split} of {prefix} is empty: split {args.data.split!r} divides its "
            f"{len(documents)} documents at {bounds}\n  to do: choose another --split, or --data PREFIX",
            everywhere=True,
        )
    return f"the split {asked.split} of {prefix}", documents, first, last


def _text(score: Score, what: str, seconds: float) -> str:
    return (
        f"{what}: loss {score.loss:.4f} nats per token · perplexity {score.perplexity:.2f} · "
        f"{score.nats_per_byte:.4f} nats per byte · {score.bits_per_byte:.4f} bits per byte\n"
        f"({score.tokens:,} tokens, {score.bytes:,} bytes, {seconds:.1f} s)"
    )
