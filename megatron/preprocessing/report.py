"""What a run did, and how that is said."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from megatron.logging import get_logger

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
        text_bytes: uncompressed bytes of the input.
        seconds: time from the start of the workers to the published files.
        resumed: bytes of the input that an earlier, interrupted run had done.
        repaired: texts in which lone surrogates were replaced by U+FFFD.
        bad_lines, missing_keys: lines that were left out because of them.
        masked: documents and tokens of the label file that are masked; None where there is none.
    """

    files: tuple[TokenFileReport, ...]
    text_bytes: int
    seconds: float
    repaired: int
    bad_lines: int = 0
    missing_keys: int = 0
    resumed: int = 0
    masked: tuple[int, int] | None = None


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
    if report.masked is not None:
        documents, tokens = report.masked
        log.log(
            logging.INFO if documents else logging.WARNING,
            "labels: %s documents hold the ids of --mask-before-token, and %s tokens are left out of the "
            "loss; all other documents are learnt whole",
            f"{documents:,}",
            f"{tokens:,}",
        )
    if report.repaired:
        log.warning("%d texts held lone surrogates, replaced by U+FFFD", report.repaired)
    if report.bad_lines:
        log.warning("%d bad lines skipped (--on-bad-line skip)", report.bad_lines)
    if report.missing_keys:
        log.warning("%d lines without a key skipped (--on-missing-key)", report.missing_keys)
    seconds = max(report.seconds, 1e-9)
    if report.resumed:
        log.info("%.1f MB of the input were done by an earlier run", report.resumed / 1e6)
        now = report.text_bytes - report.resumed
        log.info("%.1f MB in %.1f s: %.2f MB/s", now / 1e6, seconds, now / seconds / 1e6)
        return
    tokens = sum(file.tokens for file in report.files)
    log.info(
        "%.1f MB of input in %.1f s: %.2f MB/s, %s tokens/s",
        report.text_bytes / 1e6,
        seconds,
        report.text_bytes / seconds / 1e6,
        f"{tokens / seconds:,.0f}",
    )
