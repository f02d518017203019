"""What a run did, and how that is said."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from megatron.logging import get_logger
from megatron.preprocessing.tally import Tally

log = get_logger(__name__)


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
        tally: what was counted, by an earlier, interrupted run too.
        seconds: time from the start of the workers to the published files.
        resumed: bytes of the input that an earlier, interrupted run had done.
        has_labels: the last of the files holds labels.
    """

    files: tuple[TokenFileReport, ...]
    tally: Tally
    seconds: float
    resumed: int = 0
    has_labels: bool = False


def log_report(report: Report) -> None:
    """Say what was done, a line per pair of files."""
    tally = report.tally
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
    if report.has_labels:
        log.log(
            logging.INFO if tally.masked_documents else logging.WARNING,
            "labels: %s documents hold the ids of --mask-before-token, and %s tokens are left out of the "
            "loss; all other documents are learnt whole",
            f"{tally.masked_documents:,}",
            f"{tally.masked_tokens:,}",
        )
    if tally.repaired:
        log.warning("%d texts held lone surrogates, replaced by U+FFFD", tally.repaired)
    if tally.bad_lines:
        log.warning("%d bad lines skipped (--on-bad-line skip)", tally.bad_lines)
    if tally.missing_keys:
        log.warning("%d lines without a key skipped (--on-missing-key)", tally.missing_keys)
    seconds = max(report.seconds, 1e-9)
    if report.resumed:
        log.info("%.1f MB of the input were done by an earlier run", report.resumed / 1e6)
        now = tally.text_bytes - report.resumed
        log.info("%.1f MB in %.1f s: %.2f MB/s", now / 1e6, seconds, now / seconds / 1e6)
        return
    tokens = sum(file.tokens for file in report.files)
    log.info(
        "%.1f MB of input in %.1f s: %.2f MB/s, %s tokens/s",
        tally.text_bytes / 1e6,
        seconds,
        tally.text_bytes / seconds / 1e6,
        f"{tokens / seconds:,.0f}",
    )
