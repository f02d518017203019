"""The engine: input files through worker processes into token files, all or nothing.

The output is a function of the input and the settings alone: the number of workers, the size of
chunks and the speed of anything change no byte of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from megatron.data.indexed_dataset import best_fitting_dtype
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.encoding import JsonTextRecipe, load_ftfy
from megatron.preprocessing.output import TokenFileSet
from megatron.preprocessing.pool import WorkerPool
from megatron.preprocessing.progress import Progress
from megatron.preprocessing.readers import check_inputs, read_chunks
from megatron.tokenizer import Tokenizer, build_tokenizer

log = get_logger(__name__)

_REFUSED_IMPLS = {
    "lazy": "it opens and seeks in the file for every read, which mapping the file does without",
}


@dataclass(frozen=True)
class PreprocessSettings:
    """What to tokenize, how, and where to.

    Attributes:
        inputs: files with one JSON object a line, plain or zstandard.
        output_prefix: the files are ``{output_prefix}_{key}_document.bin`` and ``.idx``.
        tokenizer_type, vocab_file, merge_file: see :func:`megatron.tokenizer.build_tokenizer`.
        jsonl_keys: the keys that hold text; each gets files of its own.
        append_eod: end each document with the end-of-document token.
        dataset_impl: the form of the token files: ``mmap``, or ``cached`` (always int32).
        workers: processes that tokenize.
        num_docs: documents to come, if known; only the progress bar depends on it.
        log_interval: documents between two looks of the progress bar.
        on_bad_line, on_missing_key: ``fail``, or ``skip`` to leave such lines out and count them.
        dtype: NumPy name of the type on disk; None for the smallest that holds all ids.
        ftfy: mend garbled text with the package of that name.
    """

    inputs: tuple[str, ...]
    output_prefix: str
    tokenizer_type: str
    vocab_file: str | None = None
    merge_file: str | None = None
    jsonl_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    dataset_impl: str = "mmap"
    workers: int = 1
    num_docs: int | None = None
    log_interval: int = 100
    on_bad_line: str = "fail"
    on_missing_key: str = "fail"
    dtype: str | None = None
    ftfy: bool = False


@dataclass(frozen=True)
class TokenFileReport:
    """What a pair of token files holds.

    Attributes:
        prefix: path without ``.bin``/``.idx``.
        documents, tokens: how many were written; EOD tokens count.
        empty: documents without a token, which were left out.
        dtype: NumPy name of the stored type.
    """

    prefix: str
    documents: int
    tokens: int
    empty: int
    dtype: str


@dataclass(frozen=True)
class Report:
    """What a run did.

    Attributes:
        files: one entry per key.
        text_bytes: uncompressed bytes of the input.
        seconds: time from the start of the workers to the published files.
        repaired: texts in which lone surrogates were replaced by U+FFFD.
        bad_lines, missing_keys: lines that were left out because of them.
    """

    files: tuple[TokenFileReport, ...]
    text_bytes: int
    seconds: float
    repaired: int
    bad_lines: int = 0
    missing_keys: int = 0


def preprocess(settings: PreprocessSettings) -> Report:
    """Tokenize the inputs' documents, in their order, and publish the token files.

    Raises:
        DataError: the settings, an input or the output are not usable, a line is wrong, no document
            has a token, or a worker died. No output is left; that of an earlier run stays.
        TokenizerError: the tokenizer cannot be built or lacks the end-of-document token.
    """
    _check(settings)
    total_bytes = check_inputs(settings.inputs)
    if settings.ftfy:
        load_ftfy()  # raises, before any work, where it is not installed
    recipe = JsonTextRecipe(
        settings.tokenizer_type,
        settings.vocab_file,
        settings.merge_file,
        settings.jsonl_keys,
        settings.append_eod,
        "int32" if settings.dataset_impl == "cached" else settings.dtype,
        None,
        settings.on_bad_line == "skip",
        settings.on_missing_key == "skip",
        settings.ftfy,
    )
    prefixes = [f"{settings.output_prefix}_{key}_document" for key in settings.jsonl_keys]
    with ExitStack() as stack:
        # They load their tokenizers while this process loads and proves its own.
        pool = stack.enter_context(WorkerPool(recipe, settings.workers))
        tokenizer = build_tokenizer(
            settings.tokenizer_type, settings.vocab_file, settings.merge_file
        )
        if settings.append_eod:
            _ = tokenizer.eod  # raises, before any work, where there is none
        dtype = _dtype(settings, tokenizer)
        engine = tokenizer.engine
        log.info(
            "%s: %s ids, stored as %s; encoded by %s",
            tokenizer.name,
            f"{tokenizer.vocab_size:,}",
            dtype.name,
            engine,
        )
        if tokenizer.disproved:  # the workers took it on trust
            stack.close()
            pool = stack.enter_context(WorkerPool(replace(recipe, engine=engine), settings.workers))
        progress = Progress(total_bytes, settings.num_docs, settings.log_interval)
        report = run(
            pool,
            settings.inputs,
            prefixes,
            dtype,
            progress,
            impl="cached" if settings.dataset_impl == "cached" else "mmap",
        )
    log_report(report)
    return report


def run(
    pool: WorkerPool,
    inputs: Sequence[str],
    prefixes: Sequence[str],
    dtype: np.dtype[np.integer],
    progress: Progress,
    impl: Literal["mmap", "cached"] = "mmap",
) -> Report:
    """The engine itself, for workers that give one :class:`PackedDocuments` per prefix.

    Raises:
        DataError: as :func:`preprocess`.
    """
    documents, tokens, empty = ([0] * len(prefixes) for _ in range(3))
    repaired = bad_lines = missing_keys = 0
    finished = False
    try:
        with TokenFileSet(prefixes, dtype, impl) as output:
            for chunk in pool.encode(read_chunks(inputs)):
                output.add(chunk.keys)
                for i, packed in enumerate(chunk.keys):
                    documents[i] += packed.lengths.size
                    tokens[i] += packed.tokens.size
                    empty[i] += packed.empty
                repaired += chunk.repaired
                bad_lines += chunk.bad_lines
                missing_keys += chunk.missing_keys
                progress.add(chunk)
            _check_filled(inputs, prefixes, documents, empty)
            output.publish()
        finished = True
    finally:
        progress.close(finished=finished)
    files = tuple(
        TokenFileReport(prefixes[i], documents[i], tokens[i], empty[i], dtype.name)
        for i in range(len(prefixes))
    )
    return Report(files, progress.text_bytes, progress.seconds(), repaired, bad_lines, missing_keys)


def _dtype(settings: PreprocessSettings, tokenizer: Tokenizer) -> np.dtype[np.integer]:
    """The type on disk: the one asked for, or the smallest."""
    if settings.dataset_impl == "cached":
        if settings.dtype not in (None, "int32"):
            raise DataError(
                f"--dtype {settings.dtype}: the cached form holds int32 only: leave --dtype out"
            )
        return np.dtype("<i4")
    if settings.dtype is None:
        return best_fitting_dtype(tokenizer.vocab_size)
    dtype: np.dtype[np.integer] = np.dtype(settings.dtype)
    if tokenizer.vocab_size - 1 > np.iinfo(dtype).max:
        raise DataError(
            f"--dtype {dtype.name}: holds ids up to {np.iinfo(dtype).max:,}, {tokenizer.name} has "
            f"ids up to {tokenizer.vocab_size - 1:,}: use a wider type, or leave --dtype out"
        )
    return dtype


def _check_filled(
    inputs: Sequence[str], prefixes: Sequence[str], documents: list[int], empty: list[int]
) -> None:
    """Raise where there would be a token file without a document."""
    names = ", ".join(inputs[:3]) + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")
    for prefix, written, skipped in zip(prefixes, documents, empty, strict=True):
        if not written:
            why = f"all {skipped:,} are empty" if skipped else "no line holds one"
            raise DataError(f"{names}: 0 documents for {prefix}: {why}; no files are written")


def log_report(report: Report) -> None:
    """Say what was done, a line per pair of files."""
    for file in report.files:
        skipped = f", {file.empty:,} empty documents skipped" if file.empty else ""
        log.info(
            "%s: %s documents, %s tokens (%s)%s",
            file.prefix,
            f"{file.documents:,}",
            f"{file.tokens:,}",
            file.dtype,
            skipped,
        )
    if report.repaired:
        log.warning("%d texts held lone surrogates, replaced by U+FFFD", report.repaired)
    if report.bad_lines:
        log.warning("%d bad lines skipped (--on-bad-line skip)", report.bad_lines)
    if report.missing_keys:
        log.warning("%d lines without a key skipped (--on-missing-key)", report.missing_keys)
    seconds = max(report.seconds, 1e-9)
    tokens = sum(file.tokens for file in report.files)
    log.info(
        "%.1f MB of input in %.1f s: %.2f MB/s, %s tokens/s",
        report.text_bytes / 1e6,
        seconds,
        report.text_bytes / seconds / 1e6,
        f"{tokens / seconds:,.0f}",
    )


def _check(settings: PreprocessSettings) -> None:
    """Raise for settings that no run can honour."""
    problems = []
    if settings.dataset_impl not in ("mmap", "cached"):
        reason = _REFUSED_IMPLS.get(settings.dataset_impl, "it is unknown")
        problems.append(f"--dataset-impl {settings.dataset_impl}: {reason}; use mmap")
    if not settings.inputs:
        problems.append("--input names no file")
    for name, value in (
        ("--workers", settings.workers),
        ("--log-interval", settings.log_interval),
        ("--num-docs", settings.num_docs),
    ):
        if value is not None and value < 1:
            problems.append(f"{name} is {value}, expected a whole number from 1 on")
    keys = settings.jsonl_keys
    if not keys or len(set(keys)) != len(keys):
        problems.append(f"--jsonl-keys {' '.join(keys)}: expected keys, each named once")
    problems += [
        f"--jsonl-keys {key!r}: a key becomes part of a file's name and cannot hold {os.sep!r}"
        for key in keys
        if os.sep in key or "\0" in key
    ]
    if problems:
        raise DataError("\n".join(problems))
