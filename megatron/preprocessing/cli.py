"""The command lines of ``preprocess_data.py`` and ``preprocess_data_with_mask.py`` in tools/datasets/:
GPT-NeoX's flags, each one honoured."""

from __future__ import annotations

import argparse
import re
import signal
from collections.abc import Sequence
from types import FrameType

from megatron.logging import configure
from megatron.preprocessing.engine import PreprocessSettings, preprocess
from megatron.preprocessing.formats import ACCEPTED_ENDINGS
from megatron.preprocessing.inputs import input_files
from megatron.preprocessing.settings import LABEL_KEY
from megatron.tokenizer import TOKENIZER_TYPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Preprocess as the arguments say; 0 when the token files are there.

    Raises:
        NeoXError: see :func:`megatron.preprocessing.engine.preprocess`.
    """
    return _run(parser(), arguments)


def mask_main(arguments: Sequence[str] | None = None) -> int:
    """The same with labels."""
    with_mask = parser()
    with_mask.description = (
        f"{with_mask.description} With --mask-before-token also OUTPUT-PREFIX_{LABEL_KEY}_document, "
        "of the same shape."
    )
    with_mask.add_argument(
        "--mask-before-token",
        type=_ids,
        metavar="IDS",
        help="ids of a delimiter, such as 25,198: labels are -100 (not learnt) up to and including the "
        "first place of a document where these ids follow each other, and the tokens after it; a "
        "document without one is learnt whole",
    )
    return _run(with_mask, arguments)


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    parsed = parser.parse_args(arguments)
    configure()
    settings = settings_from(parsed)
    stop_cleanly_on_sigterm()
    preprocess(settings)
    return 0


def _ids(text: str) -> tuple[int, ...]:
    """Ids between commas."""
    return tuple(int(part) for part in text.split(",") if part.strip())


def stop_cleanly_on_sigterm() -> None:
    """Let SIGTERM unwind the program as Ctrl-C does, so that unfinished files are taken away."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say what to read; shared by the tools that read text."""
    group = parser.add_argument_group("input")
    group.add_argument(
        "--input",
        required=True,
        nargs="+",
        metavar="FILE",
        help="files with one JSON object a line, in order; also comma-separated lists, folders and "
        "patterns (sorted by path), and - for standard input. A .txt is one document, the rows of a "
        ".parquet are objects (with the optional package pyarrow). "
        f"Endings: {', '.join(ACCEPTED_ENDINGS)}",
    )
    group.add_argument(
        "--jsonl-keys",
        nargs="+",
        default=["text"],
        metavar="KEY",
        help="keys that hold text; every line must have all of them (default: text)",
    )
    group.add_argument(
        "--txt-separator",
        type=_with_escapes,
        metavar="TEXT",
        help=r"what stands between two documents of a .txt, such as '\n\n\n' (\n, \t, \r and \\ mean what "
        "they mean in a shell's printf)",
    )


def _with_escapes(text: str) -> str:
    r"""``text`` with the characters that ``\n``, ``\t``, ``\r`` and ``\\`` stand for."""
    meaning = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    return re.sub(r"\\([ntr\\])", lambda match: meaning[match[1]], text)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        description="Tokenize text into the token files that training reads: "
        "OUTPUT-PREFIX_KEY_document.bin and .idx. Empty documents are left out and counted. "
        "Nothing is written unless all of the input could be read.",
        allow_abbrev=False,
    )
    add_input_arguments(parser)
    _add_text_arguments(parser)
    _add_tokenizer_arguments(parser)
    _add_output_arguments(parser)
    _add_runtime_arguments(parser)
    return parser


def _add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """What is done with lines and texts."""
    parser.add_argument(
        "--num-docs",
        type=int,
        metavar="N",
        help="documents in the input, if known, for the progress bar; nothing else depends on it",
    )
    for flag, what in (
        ("--on-bad-line", "a line that is no JSON object, or whose value is no string"),
        ("--on-missing-key", "an object that lacks a key"),
    ):
        parser.add_argument(
            flag,
            default="fail",
            choices=["fail", "skip"],
            help=f"{what}: stop and say where, or leave it out and count it (default: fail)",
        )
    parser.add_argument(
        "--ftfy", action="store_true", help="mend garbled text with the optional package ftfy"
    )


def _add_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    """Which tokenizer, and its files."""
    group = parser.add_argument_group("tokenizer")
    group.add_argument(
        "--tokenizer-type", required=True, metavar="TYPE", help=f"{', '.join(TOKENIZER_TYPES)}"
    )
    group.add_argument(
        "--vocab-file",
        metavar="FILE",
        help="vocab.json, tokenizer.json, a SentencePiece model, or for TiktokenTokenizer an encoding's "
        "name or .tiktoken file",
    )
    group.add_argument("--merge-file", metavar="FILE", help="merges.txt, for GPT-2's tokenizers")
    group.add_argument(
        "--append-eod",
        action="store_true",
        help="end each document with the end-of-document token",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the token files go, and their form."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output-prefix",
        required=True,
        metavar="PREFIX",
        help="path that the files' names start with; folders are made",
    )
    group.add_argument(
        "--dataset-impl",
        default="mmap",
        choices=["mmap", "cached", "lazy"],
        help="form of the token files (default: mmap)",
    )
    group.add_argument(
        "--dtype",
        choices=["uint16", "int32", "int64"],
        help="type of a token on disk (default: the smallest that holds every id)",
    )
    group.add_argument(
        "--afresh",
        action="store_true",
        help="throw away what an interrupted run with the same inputs and settings has left in "
        "OUTPUT-PREFIX.partial: without it the run goes on from there. Finished files of the same names "
        "are replaced either way, once the new ones are whole",
    )


def _add_runtime_arguments(parser: argparse.ArgumentParser) -> None:
    """How the work is shared out; the files do not depend on it."""
    group = parser.add_argument_group("runtime")
    group.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that tokenize; the output does not depend on it (default: 1)",
    )
    group.add_argument(
        "--partitions",
        type=int,
        default=1,
        metavar="N",
        help="cut the work into N parts, which several machines may do that share the folder of the "
        "output; the files do not depend on it (default: 1)",
    )
    group.add_argument(
        "--partition",
        type=int,
        metavar="I",
        help="do part I of --partitions alone, from 0; a run without this flag does those that are "
        "missing and joins all",
    )
    group.add_argument(
        "--log-interval",
        type=int,
        default=100,
        metavar="N",
        help="documents between two looks of the progress bar (default: 100)",
    )


def settings_from(parsed: argparse.Namespace) -> PreprocessSettings:
    """The settings that the parsed arguments describe."""
    return PreprocessSettings(
        inputs=input_files(parsed.input),
        output_prefix=parsed.output_prefix,
        tokenizer_type=parsed.tokenizer_type,
        vocab_file=parsed.vocab_file,
        merge_file=parsed.merge_file,
        jsonl_keys=tuple(parsed.jsonl_keys),
        append_eod=parsed.append_eod,
        dataset_impl=parsed.dataset_impl,
        workers=parsed.workers,
        num_docs=parsed.num_docs,
        log_interval=parsed.log_interval,
        on_bad_line=parsed.on_bad_line,
        on_missing_key=parsed.on_missing_key,
        dtype=parsed.dtype,
        ftfy=parsed.ftfy,
        mask_before=getattr(parsed, "mask_before_token", None),
        txt_separator=parsed.txt_separator,
        partitions=parsed.partitions,
        partition=parsed.partition,
        afresh=parsed.afresh,
    )
