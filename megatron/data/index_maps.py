"""The order of samples: three arrays that say which tokens the i-th sample of a split is made of.

Packed samples of ``seq_length + 1`` tokens, cut one after the other from the concatenation of
shuffled documents; two neighbours share one token, the last label of the one being the first input
of the other. Legend for one *round*, the stretch that is shuffled as a whole:

    doc_idx      [epochs × documents]  documents in the order of the concatenation
    sample_idx   [samples + 1, 2]      (position in doc_idx, offset in that document) of token
                                       i × seq_length of the concatenation
    shuffle_idx  [samples]             row of sample_idx that the i-th sample starts at

``data_order: neox`` is one round over all epochs: the arrays that GPT-NeoX builds from the same
inputs, so that the data order of a published run can be reproduced. ``data_order: epochs`` is one
round an epoch, seeded by the epoch, the rounds one behind the other in the same arrays: its order
does not depend on how many samples are asked for.

Everything is vectorised and goes in pieces: time is linear in samples and documents, and memory
stays below the size of the arrays, because a finished piece can be written away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

ARRAY_NAMES: Final = ("doc_idx", "sample_idx", "shuffle_idx")
_PIECE: Final = 1 << 20  # entries of doc_idx or rows handled at once
_INT32_END: Final = 2**31 - 1
_UINT32_END: Final = 2**32 - 1

Order = Literal["neox", "epochs"]
Array = npt.NDArray[Any]
ArrayForms = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and type by name


@dataclass(frozen=True)
class IndexShape:
    """The sizes that follow from the inputs before anything is built.

    Attributes:
        first_document, stop_document: the split's documents, counted in the token file.
        tokens_per_epoch: tokens of these documents.
        seq_length: tokens from the start of one sample to the start of the next.
        epochs: how often each document occurs.
        order: ``neox`` or ``epochs``.
    """

    first_document: int
    stop_document: int
    tokens_per_epoch: int
    seq_length: int
    epochs: int
    order: Order

    @property
    def documents(self) -> int:
        """Documents of the split."""
        return self.stop_document - self.first_document

    @property
    def rounds(self) -> int:
        """Stretches that are shuffled by themselves."""
        return 1 if self.order == "neox" else self.epochs

    @property
    def epochs_per_round(self) -> int:
        """Epochs in each of them."""
        return self.epochs // self.rounds

    @property
    def samples_per_round(self) -> int:
        """Samples in each of them."""
        return samples_in(self.tokens_per_epoch, self.seq_length, self.epochs_per_round)

    @property
    def samples(self) -> int:
        """All samples that the arrays give."""
        return self.rounds * self.samples_per_round

    def arrays(self) -> ArrayForms:
        """Shape and type of each array.

        Types are GPT-NeoX's, but for positions past 2^31, which would overflow there.
        """
        rows = self.rounds * (self.samples_per_round + 1)
        return array_forms(self.epochs * self.documents, rows, self.samples, self.stop_document)


def array_forms(entries: int, rows: int, samples: int, stop_document: int) -> ArrayForms:
    """Shape and type of each array.

    Args:
        entries: of doc_idx.
        rows: of sample_idx.
        samples: of shuffle_idx.
        stop_document: above all documents.
    """
    wide_rows = 2 * rows >= _INT32_END or entries > _INT32_END
    wide_documents = stop_document > _INT32_END
    wide_shuffle = rows - 1 >= _UINT32_END - 1
    return {
        "doc_idx": ((entries,), np.dtype("<i8" if wide_documents else "<i4")),
        "sample_idx": ((rows, 2), np.dtype("<i8" if wide_rows else "<i4")),
        "shuffle_idx": ((samples,), np.dtype("<i8" if wide_shuffle else "<u4")),
    }


def samples_in(tokens_per_epoch: int, seq_length: int, epochs: int) -> int:
    """Whole samples in ``epochs`` epochs read in one stretch."""
    return max(0, epochs * tokens_per_epoch - 1) // seq_length


def samples_of_epochs(tokens: int, seq_length: int, epochs: float, order: Order) -> int:
    """Whole samples that ``epochs`` epochs give, a fraction of one included, and no epoch more."""
    exact = Fraction(str(epochs))
    if order == "neox":
        return max(0, int(exact * tokens) - 1) // seq_length
    return int(exact * samples_in(tokens, seq_length, 1))


def epochs_needed(tokens_per_epoch: int, seq_length: int, samples: int, order: Order) -> int:
    """The fewest epochs, at least 1, that give ``samples`` samples.

    An epoch has to hold one token at least (``neox``), or one sample at least (``epochs``).
    """
    if order == "neox":
        return max(1, -(-(samples * seq_length + 1) // tokens_per_epoch))
    return max(1, -(-samples // samples_in(tokens_per_epoch, seq_length, 1)))


def build_pieces(
    shape: IndexShape, sizes: npt.NDArray[np.int32], seed: int
) -> Iterator[tuple[str, Array]]:
    """The three arrays in pieces: each array's pieces come in order, those of different ones mixed.

    Args:
        shape: what to build.
        sizes: ``[documents]`` tokens of each document of the split.
        seed: from 0 to 2^32 - 1.
    """
    assert len(sizes) == shape.documents
    types = {name: dtype for name, (_, dtype) in shape.arrays().items()}
    samples = shape.samples_per_round
    for number in range(shape.rounds):
        rng = np.random.RandomState(seed if shape.order == "neox" else epoch_seed(seed, number))
        documents = np.arange(shape.first_document, shape.stop_document, dtype=types["doc_idx"])
        doc_idx = np.tile(documents, shape.epochs_per_round)
        rng.shuffle(doc_idx)
        yield "doc_idx", doc_idx

        first_position = number * len(doc_idx)
        for rows in _sample_rows(shape, sizes, doc_idx):
            rows[:, 0] += first_position
            yield "sample_idx", rows.astype(types["sample_idx"])
        del documents, doc_idx

        first_row = number * (samples + 1)
        shuffle_idx = np.arange(first_row, first_row + samples, dtype=types["shuffle_idx"])
        rng.shuffle(shuffle_idx)
        yield "shuffle_idx", shuffle_idx
        del shuffle_idx


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of one epoch that is shuffled by itself."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def _sample_rows(
    shape: IndexShape, sizes: npt.NDArray[np.int32], doc_idx: Array
) -> Iterator[npt.NDArray[np.int64]]:
    """The rows of one round's sample_idx, ``[n, 2]`` int64 a piece.

    A piece of ``doc_idx`` covers the tokens from ``before`` to ``ends[-1]`` of the concatenation; a
    row's token lies in the first document of the piece that ends behind it.
    """
    before, row, samples = 0, 0, shape.samples_per_round
    for at in range(0, len(doc_idx), _PIECE):
        lengths = sizes[doc_idx[at : at + _PIECE] - shape.first_document].astype(np.int64)
        ends = np.cumsum(lengths) + before
        stop_row = min(samples, (int(ends[-1]) - 1) // shape.seq_length) + 1
        for first in range(row, stop_row, _PIECE):
            stop = min(stop_row, first + _PIECE)
            tokens = np.arange(first, stop, dtype=np.int64) * shape.seq_length
            inside = np.searchsorted(ends, tokens, side="right")
            rows = np.empty((len(tokens), 2), np.int64)
            rows[:, 0] = inside + at
            rows[:, 1] = tokens - (ends - lengths)[inside]
            if first == 0:
                # Where the first documents are empty, token 0 is in a later one; GPT-NeoX starts at
                # (0, 0) all the same, which reads the same tokens.
                rows[0] = 0
            yield rows
        before, row = int(ends[-1]), stop_row
