"""Samples of whole documents against a slow restatement, through the store, and in a run's batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_files import data_args, write_documents

from megatron.data.datasets import DataRequest, DataSplits, build_datasets
from megatron.data.index_maps import epoch_seed
from megatron.data.loader import build_step_loader
from megatron.data.run_length import run_length
from megatron.data.splits import SampleCounts
from megatron.data.whole_documents import WholeDocuments, overflow_starts
from megatron.errors import DataError
from megatron.neox_arguments import BatchSizes
from megatron.runtime.world import World

SEQ = 7
PAD = 999


def build(prefix: Path, wanted: tuple[int, int, int] = (4, 0, 0), **changes: Any) -> DataSplits:
    return build_datasets(
        DataRequest(
            data_args(prefix, **changes),
            seq_length=SEQ,
            seed=5,
            wanted=SampleCounts(*wanted),
            pad_id=PAD,
        ),
        World(),
    )


def numbered(sizes: list[int]) -> list[list[int]]:
    """Documents whose tokens say which document they are of (hundreds) and where in it."""
    return [[100 * d + t for t in range(size)] for d, size in enumerate(sizes, start=1)]


def slow_epoch(
    sizes: list[int], first: int, stop: int, room: int, packing: str, chopped: bool, epoch: int
) -> list[list[tuple[int, int]]]:
    """The samples of one epoch as lists of (document, tokens), document by document."""
    least = 2 if packing == "unpacked" else 1
    kept = [d for d in range(first, stop) if sizes[d] >= least and (chopped or sizes[d] <= room)]
    order = np.array(kept, np.int64)
    np.random.RandomState(epoch_seed(5, epoch)).shuffle(order)
    samples: list[list[tuple[int, int]]] = []
    for document in order.tolist():
        size = min(sizes[document], room)
        filled = sum(count for _, count in samples[-1]) if samples else room
        if packing == "unpacked" or filled + size > room:
            samples.append([])
        samples[-1].append((document, size))
    return samples


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=40),
    packing=st.sampled_from(["unpacked", "pack_until_overflow"]),
    chopped=st.booleans(),
    epochs=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_arrays_are_those_of_a_walk(
    sizes: list[int], packing: Any, chopped: bool, epochs: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(sizes) - 1))
    stop = data.draw(st.integers(first + 1, len(sizes)))
    documents = WholeDocuments(first, stop, SEQ, 5, packing, chopped)
    part = np.array(sizes[first:stop], np.int32)
    kept = documents.kept(part)
    counts = tuple(documents.samples_of(kept, part, epoch) for epoch in range(epochs))
    pieces: dict[str, list[Any]] = {"doc_idx": [], "sample_idx": [], "shuffle_idx": []}
    for name, piece in documents.build_pieces(kept, part, counts):
        pieces[name].append(piece)
    arrays = {name: np.concatenate(found) for name, found in pieces.items()}
    assert {name: (a.shape, a.dtype) for name, a in arrays.items()} == documents.forms(
        len(kept), counts
    )
    found = []
    for row in arrays["shuffle_idx"].tolist():
        begin, end = arrays["sample_idx"][row : row + 2, 0].tolist()
        members = arrays["doc_idx"][begin:end].tolist()
        found.append([(d, min(sizes[d], SEQ + 1)) for d in members])
    expected = [
        slow_epoch(sizes, first, stop, SEQ + 1, packing, chopped, epoch) for epoch in range(epochs)
    ]
    assert counts == tuple(map(len, expected))
    assert found == [sample for epoch in expected for sample in epoch]


@given(
    # A piece is twice the room at least: of most lists there are several.
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=20)
    | st.lists(st.integers(1, 9), min_size=60, max_size=200),
    room=st.integers(9, 30),
    piece=st.integers(1, 80),
)
@settings(deadline=None)
def test_pieces_make_no_difference(lengths: list[int], room: int, piece: int) -> None:
    expected, filled = [], room
    for number, length in enumerate(lengths):
        filled += length
        if filled > room:
            expected.append(number)
            filled = length
    found = overflow_starts(np.array(lengths, np.int32), room, piece)
    assert np.concatenate(list(found)).tolist() == expected


@pytest.mark.parametrize("chopped", [True, False])
@pytest.mark.parametrize("packing", ["unpacked", "pack_until_overflow"])
def test_no_token_is_lost_or_doubled_and_splits_are_kept_apart(
    tmp_path: Path, packing: str, chopped: bool
) -> None:
    sizes = [3, 5, 12, 1, 8, 2, 4, 9] * 4
    documents = numbered(sizes)
    prefix = write_documents(tmp_path / "d", documents)
    changes = {"pack_impl": packing, "allow_chopped": chopped, "split": "16,16,0"}
    facts = build(prefix, **changes).facts.splits["train"]
    data = build(prefix, (facts.samples_per_epoch, 3, 0), **changes)
    assert data.train is not None
    assert data.valid is not None
    assert data.facts.splits["train"].epochs == 1
    assert len(data.train) == facts.samples_per_epoch
    least = 2 if packing == "unpacked" else 1
    expected = [
        token
        for document in documents[:16]
        if len(document) >= least and (chopped or len(document) <= SEQ + 1)
        for token in document[: SEQ + 1]
    ]
    samples = [data.train[i] for i in range(len(data.train))]
    read = [t for sample in samples for t in sample.tokens[: sample.length].tolist()]
    assert Counter(read) == Counter(expected)
    assert all(set(sample.tokens[sample.length :].tolist()) <= {PAD} for sample in samples)
    held_out = [data.valid[i] for i in range(len(data.valid))]
    assert {t // 100 for s in held_out for t in s.tokens[: s.length].tolist()} <= set(range(17, 33))
    if packing == "unpacked":
        assert all(len({t // 100 for t in s.tokens[: s.length].tolist()}) == 1 for s in samples)


def test_more_samples_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", numbered([3, 5, 2, 7, 1, 8, 4] * 3))
    short = build(prefix, (4, 0, 0), pack_impl="pack_until_overflow")
    long = build(prefix, (90, 0, 0), pack_impl="pack_until_overflow", data_order="epochs")
    assert short.train is not None
    assert long.train is not None
    assert long.facts.splits["train"].epochs > 3
    for i in range(len(short.train)):
        assert short.train[i].tokens.tolist() == long.train[i].tokens.tolist()
    assert short.index_keys == long.index_keys


def test_padding_does_not_count(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12]])
    train = build(prefix, (2, 0, 0), pack_impl="unpacked").train
    assert train is not None
    batch = BatchSizes(2, 2, 1, 1)
    step = next(
        build_step_loader(
            train, first_sample=0, num_steps=1, batch=batch, data_rank=0, num_workers=0
        )
    )
    rows = {
        tuple(t): m
        for t, m in zip(step.tokens[0].tolist(), step.loss_mask[0].tolist(), strict=True)
    }
    assert rows == {
        (1, 2, 3, PAD, PAD, PAD, PAD, PAD): [True, True, *[False] * 5],
        (4, 5, 6, 7, 8, 9, 10, 11): [True] * 7,
    }


def test_epochs_of_whole_documents_are_counted(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", numbered([3, 5, 12, 1, 8]))
    args = data_args(prefix, pack_impl="unpacked", allow_chopped=False)
    length = run_length(
        args, epochs=2.5, seq_length=SEQ, seed=5, global_batch_size=2, world=World()
    )
    assert length.explain() == (
        "train_epochs: 2.5 × 3 samples (unpacked) = 7 samples; // 2 samples a step = 3 steps; "
        "1 samples are left over"
    )


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", numbered([9, 12]))
    with pytest.raises(
        DataError, match=r"without the longer ones \(allow_chopped\): 0 whole samples"
    ):
        build(prefix, pack_impl="unpacked", allow_chopped=False)
