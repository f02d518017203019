"""Chunks of lines → packed token ids: what a worker does, as a pure function of its chunk."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megatron.data.index_file import best_fitting_dtype
from megatron.errors import DataError
from megatron.preprocessing.documents import Tolerance, parse_documents, replace_lone_surrogates
from megatron.preprocessing.readers import BEGINNING, Position, TextChunk
from megatron.tokenizer import Tokenizer, build_tokenizer

IGNORED_LABEL = -100
"""The label of a token that is not learnt, as in GPT-NeoX."""

LABEL_DTYPE = np.dtype("<i4")


@dataclass(frozen=True)
class PackedDocuments:
    """The documents of one key, end to end.

    Attributes:
        tokens: ``[sum of lengths]`` in the type of the token file.
        lengths: int32 ``[documents]``, tokens of each; all above 0.
        empty: documents without a token, which were left out.
    """

    tokens: NDArray[Any] = field(repr=False)
    lengths: NDArray[np.int32] = field(repr=False)
    empty: int


@dataclass(frozen=True)
class EncodedChunk:
    """What becomes of a :class:`TextChunk`.

    Attributes:
        keys: the packed documents of each key, in the order of the keys.
        text_bytes: size of the chunk's lines, uncompressed.
        stored_bytes: bytes of the input file that the chunk was read from.
        repaired: texts in which lone surrogates were replaced.
        bad_lines, missing_keys: lines that were left out because of them.
        end: where the next chunk begins.
        masked_documents, masked_tokens: of the labels, if there are any: documents that had the ids to
            mask up to, and their tokens that are left out of the loss.
    """

    keys: tuple[PackedDocuments, ...]
    text_bytes: int
    stored_bytes: int
    repaired: int
    bad_lines: int = 0
    missing_keys: int = 0
    end: Position = BEGINNING
    masked_documents: int = 0
    masked_tokens: int = 0


class ChunkEncoder(Protocol):
    """Turns a chunk into ids; lives in a worker process."""

    def __call__(self, chunk: TextChunk) -> EncodedChunk: ...


class EncoderRecipe(Protocol):
    """What is sent to a worker, once, so that it can make its own :class:`ChunkEncoder`."""

    def build(self) -> ChunkEncoder: ...


@dataclass(frozen=True)
class JsonTextRecipe:
    """Tokenize the strings under some keys of JSON lines.

    Attributes:
        tokenizer_type, vocab_file, merge_file: see :func:`megatron.tokenizer.build_tokenizer`.
        keys: the keys that hold text.
        append_eod: end each document with the end-of-document token.
        dtype: NumPy name of the type in which ids are stored; None for the smallest.
        engine: the tokenizer's engine, as the parent found it; None to take the fastest that can be
            made, while the parent proves it.
        skip_bad_lines, skip_missing_keys: leave such lines out and count them.
        ftfy: mend garbled text with the package of that name.
        mask_before: also give labels of the one key's documents, see :func:`masked_labels`.
    """

    tokenizer_type: str
    vocab_file: str | None
    merge_file: str | None
    keys: tuple[str, ...]
    append_eod: bool
    dtype: str | None = None
    engine: str | None = None
    skip_bad_lines: bool = False
    skip_missing_keys: bool = False
    ftfy: bool = False
    mask_before: tuple[int, ...] | None = None

    def build(self) -> ChunkEncoder:
        """Load the tokenizer."""
        tokenizer = build_tokenizer(self.tokenizer_type, self.vocab_file, self.merge_file)
        tokenizer.trust(self.engine)
        return JsonTextEncoder(tokenizer, self)


class JsonTextEncoder:
    """See :class:`JsonTextRecipe`."""

    def __init__(self, tokenizer: Tokenizer, recipe: JsonTextRecipe) -> None:
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._eod = tokenizer.eod if recipe.append_eod else None
        dtype: np.dtype[Any] = best_fitting_dtype(tokenizer.vocab_size)
        self._dtype = np.dtype(recipe.dtype) if recipe.dtype else dtype
        self._mend = load_ftfy() if recipe.ftfy else None

    def __call__(self, chunk: TextChunk) -> EncodedChunk:
        recipe = self._recipe
        tolerance = Tolerance(recipe.skip_bad_lines, recipe.skip_missing_keys)
        texts: list[list[str]] = [[] for _ in recipe.keys]
        repaired = 0
        for document in parse_documents(chunk, recipe.keys, tolerance):
            for of_key, text in zip(texts, document, strict=True):
                clean = replace_lone_surrogates(text)
                repaired += clean is not text
                of_key.append(self._mend(clean) if self._mend else clean)
        packed = tuple(
            pack_documents(self._tokenizer, of_key, self._eod, self._dtype) for of_key in texts
        )
        masked = 0, 0
        if recipe.mask_before is not None:
            packed = (*packed, masked_labels(packed[0], recipe.mask_before))
            masked = _count_masked(packed[-1])
        return EncodedChunk(
            packed,
            len(chunk.text),
            chunk.stored_bytes,
            repaired,
            tolerance.bad_lines,
            tolerance.missing_keys,
            chunk.end,
            *masked,
        )


def load_ftfy() -> Callable[[str], str]:
    """The function that mends garbled text.

    Raises:
        DataError: the package is not installed.
    """
    try:
        mend: Callable[[str], str] = importlib.import_module("ftfy").fix_text
    except ImportError as error:
        raise DataError("--ftfy needs the package ftfy: `pip install ftfy`") from error
    return mend


def pack_documents(
    tokenizer: Tokenizer, texts: Sequence[str], eod: int | None, dtype: np.dtype[Any]
) -> PackedDocuments:
    """Tokenize, leave out what is empty, end each document with ``eod`` unless it is None.

    An empty string is empty even for a tokenizer that puts a token in front of every text.

    Raises:
        DataError: an id does not fit ``dtype``.
    """
    filled = [text for text in texts if text]
    tokens, lengths = tokenizer.tokenize_packed(filled)
    lengths = lengths[lengths > 0]
    if eod is not None:
        tokens = np.insert(tokens, np.cumsum(lengths), eod)
        lengths = lengths + 1
    if tokens.size and int(tokens.max()) > np.iinfo(dtype).max:
        raise DataError(
            f"token id {int(tokens.max())} of {tokenizer.name} does not fit {dtype.name}, which "
            f"ends at {np.iinfo(dtype).max}"
        )
    empty = len(texts) - len(lengths)
    return PackedDocuments(tokens.astype(dtype), lengths.astype(np.int32), empty)


def masked_labels(documents: PackedDocuments, before: Sequence[int]) -> PackedDocuments:
    """The documents' tokens as labels: :data:`IGNORED_LABEL` up to and including ``before``.

    The first place of a document where the ids ``before`` follow each other counts. A document without
    one is learnt whole, as in GPT-NeoX.
    """
    tokens, pattern = documents.tokens.astype(LABEL_DTYPE), np.asarray(before, np.int64)
    ends = np.cumsum(documents.lengths, dtype=np.int64)
    matches = np.ones(max(tokens.size - len(pattern) + 1, 0), dtype=bool)
    for i, token in enumerate(pattern):
        matches &= tokens[i : i + matches.size] == token
    places = np.flatnonzero(matches)
    owner = np.searchsorted(ends, places, side="right")
    inside = places + len(pattern) <= ends[owner] if places.size else np.zeros(0, bool)
    owners, first = np.unique(owner[inside], return_index=True)
    stops = places[inside][first] + len(pattern)
    starts = ends[owners] - documents.lengths[owners]
    for start, stop in zip(starts, stops, strict=True):
        tokens[start:stop] = IGNORED_LABEL
    return PackedDocuments(tokens, documents.lengths, documents.empty)


def _count_masked(labels: PackedDocuments) -> tuple[int, int]:
    """Documents and tokens that are masked; masking begins at a document's first token."""
    is_masked = labels.tokens == IGNORED_LABEL
    firsts = np.cumsum(labels.lengths, dtype=np.int64) - labels.lengths
    return int(is_masked[firsts].sum()), int(is_masked.sum())
