"""Learn a byte-level BPE vocabulary from JSON lines, as ``HFTokenizer`` reads it.

The engine and command line of ``tools/datasets/train_tokenizer.py``. The same input gives the same
file, byte for byte. Method: Sennrich et al. 2016 (arXiv:1508.07909) on UTF-8 bytes, with GPT-2's
way of cutting text into words first, as the `tokenizers` library implements both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from megatron.data.splits import split_boundaries
from megatron.errors import DataError
from megatron.logging import configure, get_logger
from megatron.preprocessing.cli import add_input_arguments, stop_cleanly_on_sigterm
from megatron.preprocessing.documents import parse_documents, replace_lone_surrogates
from megatron.preprocessing.formats import STANDARD_INPUT, Format
from megatron.preprocessing.inputs import input_files
from megatron.preprocessing.readers import check_inputs, read_chunks
from megatron.runtime.durable import replace_file

log = get_logger(__name__)

END_OF_DOCUMENT = "<|endoftext|>"

# The end-of-document token and one piece for each byte.
_SMALLEST_VOCABULARY = 1 + 256


@dataclass(frozen=True)
class TokenizerTrainingSettings:
    """What to learn from, and what to make.

    Attributes:
        inputs: files with one JSON object a line, plain or compressed, or prose.
        output: the `tokenizer.json` to write; its folder is made.
        vocab_size: entries of the vocabulary; the end-of-document token has id 0.
        jsonl_keys: the keys that hold text; all are learnt from.
        split: learn from the training documents of this split only (``90,10,0``), the same ones that
            training takes from the token files of this input; None for all.
        min_frequency: occurrences that a pair needs to become an entry.
        txt_separator: what stands between the documents of a .txt; None where it is one document.
        overwrite: replace the `tokenizer.json` that is there.
    """

    inputs: tuple[str, ...]
    output: str
    vocab_size: int
    jsonl_keys: tuple[str, ...] = ("text",)
    split: str | None = None
    min_frequency: int = 2
    txt_separator: str | None = None
    overwrite: bool = False


def train_tokenizer(settings: TokenizerTrainingSettings) -> tokenizers.Tokenizer:
    """Learn the vocabulary and publish it.

    Raises:
        DataError: an input or the output is not usable, or the text is too little for the vocabulary.
    """
    if settings.vocab_size < _SMALLEST_VOCABULARY:
        raise DataError(
            f"--vocab-size is {settings.vocab_size}, expected {_SMALLEST_VOCABULARY} or more: "
            f"{END_OF_DOCUMENT} and the 256 bytes"
        )
    if STANDARD_INPUT in settings.inputs:
        raise DataError("--input -: the text is read twice, which standard input cannot do")
    _require_free(Path(settings.output), overwrite=settings.overwrite)
    check_inputs(settings.inputs)
    limits = _documents_to_learn_from(settings)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=sys.stderr.isatty(),
    )
    texts = (text for key, number, text in _texts(settings) if number < limits[key])
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    if size != settings.vocab_size:
        raise DataError(
            f"{', '.join(settings.inputs)}: only {size:,} entries can be learnt from this text, "
            f"--vocab-size asks for {settings.vocab_size:,}: give more text, or ask for fewer"
        )
    _publish(tokenizer.to_str(pretty=True) + "\n", Path(settings.output))
    return tokenizer


def _require_free(output: Path, *, overwrite: bool) -> None:
    """Insist that nothing is lost: no file is there, or a tokenizer.json that may be replaced.

    Raises:
        DataError: something else is there, or it may not be replaced.
    """
    if not os.path.lexists(output):
        return
    if not _is_tokenizer(output):
        raise DataError(f"--output {output} exists and is no tokenizer.json: choose another name")
    if not overwrite:
        raise DataError(
            f"--output {output} exists: choose another name, or give --overwrite to replace it; data "
            "and models made with it need it as it is"
        )


def _is_tokenizer(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    model = content.get("model") if isinstance(content, dict) else None
    return isinstance(model, dict) and "vocab" in model


def _texts(settings: TokenizerTrainingSettings) -> Iterator[tuple[str, int, str]]:
    """Key, number among the documents of that key, and text of every document that is not empty."""
    seen: Counter[str] = Counter()
    how = Format(settings.jsonl_keys, settings.txt_separator)
    for chunk in read_chunks(settings.inputs, how=how):
        for document in parse_documents(chunk, settings.jsonl_keys):
            for key, text in zip(settings.jsonl_keys, document, strict=True):
                if text:
                    yield key, seen[key], replace_lone_surrogates(text)
                    seen[key] += 1


def _documents_to_learn_from(settings: TokenizerTrainingSettings) -> dict[str, int]:
    """How many of each key's documents, from the first on."""
    counts = Counter(key for key, _, _ in _texts(settings))
    if not counts:
        raise DataError(
            f"{', '.join(settings.inputs)}: 0 documents: there is no text to learn from"
        )
    limits = {
        key: split_boundaries(settings.split, count)[1] if settings.split else count
        for key, count in counts.items()
    }
    log.info("learning from %d of %d documents", sum(limits.values()), sum(counts.values()))
    return limits


def _publish(content: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.encode())
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    log.info("%s: written", path)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        description="Learn a byte-level BPE vocabulary and write it as a tokenizer.json for "
        f"HFTokenizer. {END_OF_DOCUMENT} ends a document and has id 0.",
        allow_abbrev=False,
    )
    add_input_arguments(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="the file to write")
    parser.add_argument(
        "--vocab-size", required=True, type=int, metavar="N", help="entries of the vocabulary"
    )
    parser.add_argument(
        "--split",
        metavar="SHARES",
        help="learn from the training documents of this split only, such as 90,10,0, so that the "
        "held-out ones stay unseen",
    )
    parser.add_argument(
        "--min-frequency",
        type=int,
        default=2,
        metavar="N",
        help="occurrences that a pair needs to become an entry (default: 2)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the tokenizer.json that is at --output"
    )
    return parser


def settings_from(parsed: argparse.Namespace) -> TokenizerTrainingSettings:
    """The settings that the parsed arguments describe."""
    return TokenizerTrainingSettings(
        inputs=input_files(parsed.input),
        output=parsed.output,
        vocab_size=parsed.vocab_size,
        jsonl_keys=tuple(parsed.jsonl_keys),
        split=parsed.split,
        min_frequency=parsed.min_frequency,
        txt_separator=parsed.txt_separator,
        overwrite=parsed.overwrite,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments say; 0 when the file is there."""
    parsed = parser().parse_args(arguments)
    configure()
    settings = settings_from(parsed)
    stop_cleanly_on_sigterm()
    train_tokenizer(settings)
    return 0
