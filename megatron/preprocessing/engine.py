"""The engine: input files through worker processes into token files, all or nothing.

The output is a function of the input and the settings alone: the number of workers, the size of
chunks, the number of parts, an interruption and the speed of anything change no byte of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from megatron.data.indexed_dataset import best_fitting_dtype
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.preprocessing.encoding import LABEL_DTYPE, JsonTextRecipe, load_ftfy
from megatron.preprocessing.formats import Format, can_be_read_again
from megatron.preprocessing.output import errors_name
from megatron.preprocessing.part import Part
from megatron.preprocessing.pool import WorkerPool
from megatron.preprocessing.progress import Progress
from megatron.preprocessing.readers import Span, check_inputs, cut, read_chunks
from megatron.preprocessing.report import Report, TokenFileReport, log_report
from megatron.preprocessing.settings import LABEL_KEY, PreprocessSettings
from megatron.preprocessing.tally import Tally
from megatron.preprocessing.unfinished import OutputFile, Unfinished
from megatron.tokenizer import Tokenizer, build_tokenizer

__all__ = ["PreprocessSettings", "Report", "TokenFileReport", "preprocess"]

log = get_logger(__name__)


def preprocess(settings: PreprocessSettings) -> Report:
    """Tokenize the inputs' documents, in their order, and publish the token files.

    A run that is interrupted leaves what it has done in a folder beside the output, from which the
    next one with the same inputs and settings goes on.

    Raises:
        DataError: the settings, an input or the output are not usable, a line is wrong, no document
            has a token, or a worker died. No output is left; that of an earlier run stays.
        TokenizerError: the tokenizer cannot be built or lacks the end-of-document token.
    """
    problems = settings.problems()
    if problems:
        raise DataError("\n".join(problems))
    total_bytes = check_inputs(settings.inputs)
    if settings.ftfy:
        load_ftfy()  # raises, before any work, where it is not installed
    recipe = JsonTextRecipe(
        tokenizer_type=settings.tokenizer_type,
        vocab_file=settings.vocab_file,
        merge_file=settings.merge_file,
        keys=settings.jsonl_keys,
        append_eod=settings.append_eod,
        dtype="int32" if settings.dataset_impl == "cached" else settings.dtype,
        skip_bad_lines=settings.on_bad_line == "skip",
        skip_missing_keys=settings.on_missing_key == "skip",
        ftfy=settings.ftfy,
        mask_before=settings.mask_before,
    )
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
        made_from = settings.made_from(tokenizer.fingerprint(), dtype.name)
        progress = Progress(total_bytes, settings.num_docs, settings.log_interval)
        report = _run(pool, settings, made_from, _files(settings, dtype), progress)
    log_report(report)
    return report


def _files(settings: PreprocessSettings, dtype: np.dtype[np.integer]) -> list[OutputFile]:
    """The token files, in the order in which an encoder gives their documents."""
    keys = [(key, dtype) for key in settings.jsonl_keys]
    if settings.mask_before is not None:
        keys.append((LABEL_KEY, LABEL_DTYPE))
    prefix = settings.output_prefix
    return [OutputFile(key, f"{prefix}_{key}_document", dtype) for key, dtype in keys]


def _run(
    pool: WorkerPool,
    settings: PreprocessSettings,
    made_from: dict[str, object],
    files: Sequence[OutputFile],
    progress: Progress,
) -> Report:
    """Do the parts that are to be done here and, unless other machines do some, join them."""
    try:
        parts = cut(settings.inputs, settings.partitions)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    alone = settings.partition is None
    finished, resumed = False, 0
    work = Unfinished(
        settings.output_prefix,
        files,
        "cached" if settings.dataset_impl == "cached" else "mmap",
        len(parts),
        alone=alone,
        resumable=all(map(can_be_read_again, settings.inputs)),
        afresh=settings.afresh,
    )
    try:
        with work:
            for number, spans in enumerate(parts):
                if settings.partition in (None, number):
                    part = work.open_part(number, made_from)
                    _forget_what_must_not_be_skipped(part, settings)
                    resumed += part.tally.text_bytes
                    progress.resume(part.tally)
                    if not part.finished:
                        _encode(pool, spans, settings, part, progress)
                    work.put_down(part)
            tally = work.tally()
            if alone:
                _check_filled(work, settings.inputs, files, tally)
                work.publish()
        finished = True
    finally:
        progress.close(finished=finished)
    if not alone:
        log.info(
            "part %d (of 0 to %d) is done; when all are, the same command without --partition joins them",
            settings.partition,
            settings.partitions - 1,
        )
    return Report(
        tuple(
            TokenFileReport(file.prefix, documents, tokens, empty, file.dtype.name)
            for file, documents, tokens, empty in zip(
                files, tally.documents, tally.tokens, tally.empty, strict=True
            )
        ),
        tally,
        progress.seconds(),
        resumed,
        has_labels=settings.mask_before is not None,
    )


def _encode(
    pool: WorkerPool,
    spans: Sequence[Span],
    settings: PreprocessSettings,
    part: Part,
    progress: Progress,
) -> None:
    """Do what is left of a part."""
    how = Format(settings.jsonl_keys, settings.txt_separator)
    for chunk in pool.encode(read_chunks(spans, how=how, start=part.end)):
        with errors_name(f"{settings.output_prefix}.partial"):
            part.add(chunk)
        progress.add(chunk)
    with errors_name(f"{settings.output_prefix}.partial"):
        part.commit(finished=True)


def _forget_what_must_not_be_skipped(part: Part, settings: PreprocessSettings) -> None:
    """An earlier run may have left out lines that this one has to stop at."""
    for flag, skipped, policy in (
        ("--on-bad-line", part.tally.bad_lines, settings.on_bad_line),
        ("--on-missing-key", part.tally.missing_keys, settings.on_missing_key),
    ):
        if skipped and policy == "fail":
            part.start_afresh(flag)


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
    work: Unfinished, inputs: Sequence[str], files: Sequence[OutputFile], tally: Tally
) -> None:
    """Raise where there would be a token file without a document."""
    names = ", ".join(inputs[:3]) + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")
    for file, written, skipped in zip(files, tally.documents, tally.empty, strict=True):
        if not written:
            work.give_up()
            why = f"all {skipped:,} are empty" if skipped else "no line holds one"
            raise DataError(f"{names}: 0 documents for {file.prefix}: {why}; no files are written")
