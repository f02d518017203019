"""Samples of whole documents: one document each, or as many as fit.

A sample has room for ``seq_length + 1`` tokens; what its documents leave free is padding.

    unpacked             a document is a sample; one of a single token predicts nothing and is left out
    pack_until_overflow  documents join a sample, in shuffled order, until the next one does not fit

A longer document is cut to the room that there is, its rest is not read (``allow_chopped``, as in
GPT-NeoX), or is left out as a whole. Empty documents are left out.

The arrays are those of :mod:`megatron.data.index_maps`. Each epoch is one round, seeded by its number,
whatever ``data_order`` says: how many samples an epoch gives depends on the order of its documents, so a
shuffle over all epochs would have to know the end of the run first. That also keeps the order of a run
whose length changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from megatron.data.index_maps import ArrayForms, array_forms, epoch_seed

_PIECE: Final = 1 << 16  # documents packed at once: their arrays stay in a processor's cache

Packing = Literal["unpacked", "pack_until_overflow"]


@dataclass(frozen=True)
class WholeDocuments:
    """What the samples depend on beside the sizes of the documents.

    Attributes:
        first_document, stop_document: the split's documents, counted in the token file.
        seq_length: tokens per sample, less one.
        seed: from 0 to 2^32 - 1.
        packing: how documents become samples.
        allow_chopped: whether a document that is too long is cut, or left out.
    """

    first_document: int
    stop_document: int
    seq_length: int
    seed: int
    packing: Packing
    allow_chopped: bool

    @property
    def room(self) -> int:
        """Tokens of a sample."""
        return self.seq_length + 1

    def kept(self, sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The documents that are read, counted in the token file.

        Args:
            sizes: ``[documents]`` tokens of each document of the split.
        """
        least = 2 if self.packing == "unpacked" else 1
        kept = sizes >= least
        if not self.allow_chopped:
            kept &= sizes <= self.room
        return np.flatnonzero(kept) + self.first_document

    def samples_of(
        self, kept: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32], epoch: int
    ) -> int:
        """How many samples the 0-based ``epoch`` gives."""
        if self.packing == "unpacked":
            return len(kept)
        return sum(map(len, self._starts(self._order(kept, epoch), sizes)))

    def forms(self, kept: int, epoch_samples: tuple[int, ...]) -> ArrayForms:
        """Shape and type of each array of these epochs."""
        samples, rounds = sum(epoch_samples), len(epoch_samples)
        return array_forms(kept * rounds, samples + rounds, samples, self.stop_document)

    def build_pieces(
        self,
        kept: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        epoch_samples: tuple[int, ...],
    ) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """The three arrays in pieces, as :func:`megatron.data.index_maps.build_pieces` gives them."""
        types = {name: dtype for name, (_, dtype) in self.forms(len(kept), epoch_samples).items()}
        row = 0
        for epoch, samples in enumerate(epoch_samples):
            order = self._order(kept, epoch)
            yield "doc_idx", order.astype(types["doc_idx"])
            first = epoch * len(kept)
            for starts in self._starts(order, sizes):
                yield "sample_idx", _rows(starts + first, types["sample_idx"])
            yield "sample_idx", _rows(np.array([first + len(kept)]), types["sample_idx"])
            # The documents have been shuffled: their samples need not be.
            yield "shuffle_idx", np.arange(row, row + samples, dtype=types["shuffle_idx"])
            row += samples + 1

    def _order(self, kept: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.int64]:
        order = kept.copy()
        np.random.RandomState(epoch_seed(self.seed, epoch)).shuffle(order)
        return order

    def _starts(
        self, order: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
    ) -> Iterator[npt.NDArray[np.int64]]:
        """The positions in ``order`` at which a sample begins, in pieces."""
        if self.packing == "unpacked":
            yield np.arange(len(order))
            return
        lengths = np.minimum(sizes[order - self.first_document], self.room)
        yield from overflow_starts(lengths, self.room)


def overflow_starts(
    lengths: npt.NDArray[np.int32], room: int, piece: int = _PIECE
) -> Iterator[npt.NDArray[np.int64]]:
    """Where samples begin if each takes documents until the next does not fit, ascending, in pieces.

    Let f(i) be the first document that a sample which begins with i has no room for: samples begin at
    0, f(0), f(f(0)), … A piece of f is one search in the running sum of lengths. The chain is followed by
    doubling: from its first n places and n-fold f, a look-up gives the next n places, another one
    2n-fold f.

    Args:
        lengths: ``[documents]`` tokens, from 1 to ``room``.
        room: tokens that fit.
        piece: documents handled at once, more where a sample can hold so many.
    """
    piece, at = max(piece, 2 * room), 0
    while at < len(lengths):
        ends = np.cumsum(lengths[at : at + piece], dtype=np.int64)
        stop = len(ends)
        fold = np.searchsorted(ends, ends - lengths[at : at + piece] + room, side="right")
        fold = np.append(fold, stop)  # the end leads to itself
        chain = np.zeros(1, np.int64)
        while chain[-1] != stop:
            chain = np.concatenate([chain, fold[chain]])
            fold = fold[fold]
        chain = chain[: np.searchsorted(chain, stop)]
        if at + stop < len(lengths):
            # The last sample may have room for documents of the next piece, which begins with it.
            stop, chain = int(chain[-1]), chain[:-1]
        yield chain + at
        at += stop


def _rows(positions: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    rows = np.zeros((len(positions), 2), dtype)
    rows[:, 0] = positions
    return rows
