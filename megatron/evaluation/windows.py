"""A stretch of documents cut into windows, so that each of its tokens is predicted exactly once.

Training samples are shuffled and end where the epochs end; a score must neither skip a token nor
count one twice. Window i predicts the tokens i × s + 1 … (i + 1) × s of the documents end to end,
from those before them in the window. Only the very first token, which nothing precedes, is not
predicted; the last window is filled up with masked positions.

Shapes: w = windows of a batch, s = sequence length in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.step_batch import StepBatch, blank_batch


class Documents(Protocol):
    """Token arrays by document number, with their lengths in tokens."""

    @property
    def sizes(self) -> NDArray[np.signedinteger]: ...

    def get(
        self, index: int, offset: int = 0, length: int | None = None
    ) -> NDArray[np.integer]: ...


class Windows:
    """The windows of the documents ``first`` … ``last`` - 1.

    Args:
        documents: where the tokens are.
        first, last: range of documents, the last one excluded.
        seq_length: s.
        boundaries: what the model does where a document begins, as in training.
    """

    def __init__(
        self,
        documents: Documents,
        first: int,
        last: int,
        *,
        seq_length: int,
        boundaries: Boundaries | None = None,
    ) -> None:
        self._documents = documents
        self._first = first
        self.seq_length = seq_length
        self._boundaries = boundaries
        # ends[i]: tokens in the documents up to and including the i-th of the range
        self._ends = np.cumsum(np.asarray(documents.sizes[first:last], dtype=np.int64))
        self.num_tokens = int(self._ends[-1]) if self._ends.size else 0

    def __len__(self) -> int:
        predicted = max(0, self.num_tokens - 1)
        return -(-predicted // self.seq_length)

    def tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens ``start`` … ``stop`` - 1 of the documents end to end, at most those there are."""
        pieces: list[NDArray[np.integer]] = []
        number = int(np.searchsorted(self._ends, start, side="right"))
        stop = min(stop, self.num_tokens)
        while start < stop:
            begin = int(self._ends[number - 1]) if number else 0
            length = min(stop, int(self._ends[number])) - start
            pieces.append(self._documents.get(self._first + number, start - begin, length))
            start += length
            number += 1
        return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)

    def batches(
        self, *, size: int, rank: int = 0, ranks: int = 1, blank: bool = False
    ) -> Iterator[StepBatch]:
        """This rank's windows, ``size`` at a time (w), as steps of one micro-batch.

        Rank r of R takes the windows r, r + R, r + 2R, … so that all have the same number but one. With
        ``blank`` nothing is read: batches of the same shapes in which nothing counts.
        """
        mine = range(rank, len(self), ranks)
        for start in range(0, len(mine), size):
            windows = mine[start : start + size]
            yield self._blank(windows) if blank else self._batch(windows)

    def _blank(self, windows: Sequence[int]) -> StepBatch:
        return blank_batch(
            (1, len(windows)),
            self.seq_length,
            first_sample=windows[0],
            num_samples=len(windows),
            boundaries=self._boundaries,
        )

    def _batch(self, windows: Sequence[int]) -> StepBatch:
        s = self.seq_length
        # Behind the last window's end is the id 0, which every model has; it counts for nothing.
        tokens = np.zeros((len(windows), s + 1), dtype=np.int64)
        mask = np.zeros((len(windows), s), dtype=bool)
        for row, window in enumerate(windows):
            found = self.tokens(window * s, (window + 1) * s + 1)
            tokens[row, : found.size] = found
            mask[row, : found.size - 1] = True
        documents = None
        if self._boundaries is not None:
            starts = [self._starts(window * s) for window in windows]
            documents = DocumentStarts.collect(starts, (1, len(windows)), s, self._boundaries)
        return StepBatch(
            tokens=torch.from_numpy(tokens)[None],
            loss_mask=torch.from_numpy(mask)[None],
            first_sample=windows[0],
            num_samples=len(windows),
            documents=documents,
        )

    def _starts(self, begin: int) -> list[int]:
        """Where documents begin in the inputs of the window from token ``begin`` on."""
        first, stop = np.searchsorted(self._ends, [begin, begin + self.seq_length], side="right")
        # An empty document ends where the next one begins, too.
        inside = np.unique(self._ends[first:stop]) - begin
        return [0, *(place for place in inside.tolist() if place < self.seq_length)]
