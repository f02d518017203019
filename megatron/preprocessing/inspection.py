"""Token files shown as text: the command line of `inspect_dataset.py` in tools/datasets/.

Shown are documents, or stretches of ``seq_length`` + 1 tokens as a sample holds them (those of the
file in its own order; the order of a run is its index's matter). With the label file beside it, what
is not learnt is set in brackets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.data.indexed_dataset import MMapIndexedDataset, make_dataset
from megatron.errors import DataError
from megatron.preprocessing.dataset_tools import describe, prefixes_of, say
from megatron.preprocessing.encoding import IGNORED_LABEL
from megatron.tokenizer import TOKENIZER_TYPES, Tokenizer, build_tokenizer

_BETWEEN_DOCUMENTS = "\u2016"  # a double bar
_MASKED = ("\u27e6", "\u27e7")  # white square brackets


@dataclass(frozen=True)
class Piece:
    """What is shown at a time.

    Attributes:
        title: what it is.
        tokens: ``[n]``, its tokens.
        labels: ``[n]``, their labels, or None.
        starts: the places in it, other than 0, where a document begins.
    """

    title: str
    tokens: NDArray[Any]
    labels: NDArray[Any] | None
    starts: Sequence[int] = ()


def shown(piece: Piece, tokenizer: Tokenizer | None) -> str:
    """The piece as text, or as ids where there is no tokenizer; masks and documents marked."""
    parts = []
    bounds = [0, *piece.starts, len(piece.tokens)]
    for first, stop in pairwise(bounds):
        ids = piece.tokens[first:stop]
        masked = np.zeros(len(ids), bool)
        if piece.labels is not None:
            masked = piece.labels[first:stop] == IGNORED_LABEL
        for is_masked, places in groupby(range(len(ids)), key=masked.__getitem__):
            some = ids[list(places)]
            text = str(some.tolist()) if tokenizer is None else tokenizer.detokenize(some)
            parts.append(text.join(_MASKED) if is_masked else text)
        parts.append(_BETWEEN_DOCUMENTS)
    return "".join(parts[:-1])


def documents(
    data: MMapIndexedDataset, labels: MMapIndexedDataset | None, first: int, count: int
) -> Iterator[Piece]:
    """``count`` documents from number ``first`` on."""
    total = len(data.doc_idx) - 1
    if not 0 <= first < total:
        raise DataError(f"{data.prefix}: has documents 0 to {total - 1:,}, not {first:,}")
    for number in range(first, min(first + count, total)):
        sequences = (int(data.doc_idx[number]), int(data.doc_idx[number + 1]))
        begin = data.tokens_between(0, sequences[0])
        where = slice(begin, begin + data.tokens_between(*sequences))
        tokens = data.tokens[where]
        title = f"document {number}: {len(tokens):,} tokens"
        yield Piece(title, tokens, None if labels is None else labels.tokens[where])


def samples(
    data: MMapIndexedDataset,
    labels: MMapIndexedDataset | None,
    first: int,
    count: int,
    seq_length: int,
) -> Iterator[Piece]:
    """``count`` samples of the file in its own order, from number ``first`` on."""
    total = (data.num_tokens - 1) // seq_length
    if not 0 <= first < total:
        raise DataError(
            f"{data.prefix}: has {total:,} samples of {seq_length:,} tokens in its order, counted from 0, "
            f"and no number {first:,}"
        )
    sequence_starts = np.append(data.pointers // data.pointer_step, data.num_tokens)
    document_starts = sequence_starts[data.doc_idx[:-1]]
    for number in range(first, min(first + count, total)):
        begin, end = number * seq_length, (number + 1) * seq_length
        where = slice(begin, end + 1)
        inside = slice(*np.searchsorted(document_starts, (begin, end), "right"))
        yield Piece(
            f"sample {number}: tokens {begin:,} to {end:,}",
            data.tokens[where],
            None if labels is None else labels.tokens[where],
            [int(start) - begin for start in document_starts[inside]],
        )


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        description="Show documents or samples of a token file as text. "
        f"{_BETWEEN_DOCUMENTS} stands between documents, {'what is not learnt'.join(_MASKED)}.",
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="PREFIX", help="the token file")
    parser.add_argument("--document", type=int, default=0, metavar="N", help="the first (from 0)")
    parser.add_argument("--sample", type=int, metavar="N", help="the first sample, instead")
    parser.add_argument("--seq-length", type=int, metavar="S", help="tokens of a sample")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--labels", metavar="PREFIX", help="the label file of the same documents")
    parser.add_argument("--ids", action="store_true", help="show ids instead of text")
    parser.add_argument("--tokenizer-type", metavar="TYPE", help=f"{', '.join(TOKENIZER_TYPES)}")
    parser.add_argument("--vocab-file", metavar="FILE")
    parser.add_argument("--merge-file", metavar="FILE")
    return parser


def inspect_main(arguments: Sequence[str] | None = None) -> int:
    """`inspect_dataset.py`.

    Raises:
        DataError: a file or what is asked for is not there, or the two files do not fit.
    """
    parsed = parser().parse_args(arguments)
    (prefix,) = prefixes_of([parsed.dataset])[:1]
    data = make_dataset(prefix)
    labels = make_dataset(prefixes_of([parsed.labels])[0]) if parsed.labels else None
    if labels is not None and not np.array_equal(labels.sizes, data.sizes):
        raise DataError(f"{labels.prefix}: its documents are not as long as those of {prefix}")
    if parsed.sample is not None and (parsed.seq_length or 0) < 1:
        raise DataError("--sample needs --seq-length, a whole number from 1 on")
    if not parsed.ids and not parsed.tokenizer_type:
        raise DataError("--tokenizer-type is needed to show text; --ids shows ids without one")
    tokenizer = None
    if not parsed.ids:
        files = parsed.vocab_file, parsed.merge_file
        tokenizer = build_tokenizer(parsed.tokenizer_type, *files)
    say(f"{prefix}: {describe(data)}")
    if parsed.sample is None:
        pieces = documents(data, labels, parsed.document, parsed.count)
    else:
        pieces = samples(data, labels, parsed.sample, parsed.count, parsed.seq_length)
    for piece in pieces:
        say(f"--- {piece.title}")
        say(shown(piece, tokenizer))
    return 0
