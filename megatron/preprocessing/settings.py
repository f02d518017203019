"""What a run of the engine is asked to do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from megatron.preprocessing.formats import STANDARD_INPUT, can_be_read_again

LABEL_KEY = "label"
"""The name of the labels' files, where a key's name stands in the others'."""

# Grows when the same settings begin to give other bytes, or parts are kept in another way.
_FORMAT = 1

_REFUSED_IMPLS = {
    "lazy": "it opens and seeks in the file for every read, which mapping the file does without",
}


@dataclass(frozen=True)
class PreprocessSettings:
    """What to tokenize, how, and where to.

    Attributes:
        inputs: files of the kinds that :data:`~megatron.preprocessing.formats.ACCEPTED_ENDINGS` names.
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
        mask_before: the ids up to and including whose first occurrence a document's labels are -100;
            they go to ``{output_prefix}_label_document``. None for no labels.
        txt_separator: what stands between the documents of a .txt; None where it is one document.
        partitions: parts that the work is cut into.
        partition: the one part to do, from 0, without making the token files; None for all and them.
        afresh: start afresh instead of going on from what an interrupted run left.
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
    mask_before: tuple[int, ...] | None = None
    txt_separator: str | None = None
    partitions: int = 1
    partition: int | None = None
    afresh: bool = False

    def problems(self) -> list[str]:
        """What no run can honour, a sentence each."""
        problems = []
        if self.dataset_impl not in ("mmap", "cached"):
            reason = _REFUSED_IMPLS.get(self.dataset_impl, "it is unknown")
            problems.append(f"--dataset-impl {self.dataset_impl}: {reason}; use mmap")
        if not self.inputs:
            problems.append("--input names no file")
        for name, value in (
            ("--workers", self.workers),
            ("--log-interval", self.log_interval),
            ("--num-docs", self.num_docs),
            ("--partitions", self.partitions),
        ):
            if value is not None and value < 1:
                problems.append(f"{name} is {value}, expected a whole number from 1 on")
        return [*problems, *self._problems_of_keys(), *self._problems_of_parts()]

    def _problems_of_keys(self) -> list[str]:
        keys, problems = self.jsonl_keys, []
        if not keys or len(set(keys)) != len(keys):
            problems.append(f"--jsonl-keys {' '.join(keys)}: expected keys, each named once")
        problems += [
            f"--jsonl-keys {key!r}: a key becomes part of a file's name and cannot hold {os.sep!r}"
            for key in keys
            if os.sep in key or "\0" in key
        ]
        if self.mask_before is None:
            return problems
        if len(keys) > 1 or LABEL_KEY in keys:
            problems.append(
                f"--jsonl-keys {' '.join(keys)}: with --mask-before-token expected one key other than "
                f"{LABEL_KEY!r}, because the labels of its documents are one pair of files of that name"
            )
        if not self.mask_before or min(self.mask_before) < 0:
            problems.append(
                f"--mask-before-token {self.mask_before}: expected token ids, such as 25,198"
            )
        return problems

    def _problems_of_parts(self) -> list[str]:
        problems = []
        in_parts = self.partitions > 1 or self.partition is not None
        if in_parts and not all(map(_may_be_cut, self.inputs)):
            problems.append("--partitions: a pipe cannot be cut into parts: name files")
        if self.partition is not None and not 0 <= self.partition < self.partitions:
            problems.append(
                f"--partition is {self.partition}, expected 0 to {self.partitions - 1}, one less than "
                "--partitions"
            )
        if self.txt_separator == "":
            problems.append("--txt-separator is empty, expected what stands between two documents")
        return problems

    def made_from(self, fingerprint: str, dtype: str) -> dict[str, Any]:
        """Everything that the bytes of the output depend on, under the names of the flags.

        Left out are ``on_bad_line`` and ``on_missing_key``: what was done before the first such line
        is the same under both.

        Args:
            fingerprint: of the tokenizer.
            dtype: of the tokens on disk.

        Raises:
            OSError: an input is not there.
        """
        return {
            "format": _FORMAT,
            "--input": [_identity(path) for path in self.inputs],
            "tokenizer": fingerprint,
            "--jsonl-keys": self.jsonl_keys,
            "--append-eod": self.append_eod,
            "--dataset-impl": self.dataset_impl,
            "--dtype": dtype,
            "--ftfy": self.ftfy,
            "--mask-before-token": self.mask_before,
            "--txt-separator": self.txt_separator,
        }


def _may_be_cut(path: str) -> bool:
    if path == STANDARD_INPUT or not os.path.exists(path):  # who opens it says that it is missing
        return path != STANDARD_INPUT
    return can_be_read_again(path)


def _identity(path: str) -> tuple[str, int, int]:
    """A file as it is now: its name, bytes, and time of change in ns."""
    if path == STANDARD_INPUT:
        return path, 0, 0
    status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns
