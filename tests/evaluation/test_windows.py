"""Protects that a score predicts every token but the first exactly once, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megatron.data.boundaries import Boundaries
from megatron.evaluation.windows import Windows


class Lists:
    """Documents in memory."""

    def __init__(self, *documents: list[int]) -> None:
        self._documents = [np.array(d, np.uint16) for d in documents]
        self.sizes = np.array([len(d) for d in documents], np.int32)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> NDArray[np.integer]:
        stop = None if length is None else offset + length
        return self._documents[index][offset:stop]


def test_literal() -> None:
    windows = Windows(Lists([9], [1, 2, 3], [], [4, 5, 6, 7]), 1, 4, seq_length=4)
    assert windows.num_tokens == 7
    assert len(windows) == 2
    (batch,) = windows.batches(size=8)
    assert batch.tokens.tolist() == [[[1, 2, 3, 4, 5], [5, 6, 7, 0, 0]]]
    assert batch.loss_mask.tolist() == [[[True] * 4, [True, True, False, False]]]


@pytest.mark.parametrize("documents", [[[]], [[5]], [[], []]])
def test_nothing_to_predict(documents: list[list[int]]) -> None:
    windows = Windows(Lists(*documents), 0, len(documents), seq_length=4)
    assert len(windows) == 0
    assert list(windows.batches(size=2)) == []


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    seq_length=st.integers(1, 9),
    size=st.integers(1, 4),
    ranks=st.integers(1, 3),
)
def test_every_token_once(lengths: list[int], seq_length: int, size: int, ranks: int) -> None:
    stream = list(range(sum(lengths)))
    ends = np.cumsum(lengths).tolist()
    documents = [stream[end - n : end] for end, n in zip(ends, lengths, strict=True)]
    windows = Windows(Lists(*documents), 0, len(documents), seq_length=seq_length)
    predicted = []
    for rank in range(ranks):
        for batch in windows.batches(size=size, rank=rank, ranks=ranks):
            assert batch.tokens.shape[1] <= size
            tokens, mask = batch.tokens[0], batch.loss_mask[0]
            predicted += tokens[:, 1:][mask].tolist()
            # What stands before each predicted token in its window is what precedes it in the text.
            assert (tokens[:, :-1][mask] + 1 == tokens[:, 1:][mask]).all()
    assert sorted(predicted) == stream[1:]


@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8), seq_length=st.integers(1, 9))
def test_windows_know_where_documents_begin(lengths: list[int], seq_length: int) -> None:
    asked = Boundaries(reset_position_ids=True, reset_attention_mask=False)
    # What fills up the last window is 0.
    documents = [[number] * length for number, length in enumerate(lengths, start=1)]
    stream = [token for document in documents for token in document]
    windows = Windows(Lists(*documents), 0, len(documents), seq_length=seq_length, boundaries=asked)
    begin = 0
    for batch in windows.batches(size=2):
        assert batch.documents is not None
        assert batch.documents.boundaries == asked
        for inputs, starts in zip(batch.inputs[0], batch.documents.starts[0], strict=True):
            assert inputs.tolist() == (stream[begin:] + [0] * seq_length)[:seq_length]
            changes = (inputs.diff() != 0).nonzero().flatten() + 1
            assert [n for n in starts.tolist() if n < seq_length] == [0, *changes.tolist()]
            begin += seq_length


def test_a_rank_that_reads_nothing_has_batches_of_the_same_shapes() -> None:
    windows = Windows(Lists([1, 2, 3, 4, 5, 6, 7]), 0, 1, seq_length=4)
    (batch,), (blank,) = (list(windows.batches(size=8, blank=blank)) for blank in (False, True))
    assert (blank.tokens.shape, blank.loss_mask.shape) == (
        batch.tokens.shape,
        batch.loss_mask.shape,
    )
    assert (blank.first_sample, blank.num_samples) == (batch.first_sample, batch.num_samples)
    assert not blank.loss_mask.any()
