"""Where documents begin in samples: from the index, in every way that samples reach a step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from token_files import data_args, write_documents

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.datasets import DataRequest, Samples, build_datasets
from megatron.data.loader import build_step_loader
from megatron.data.splits import SampleCounts
from megatron.data.step_batch import StepBatch
from megatron.neox_arguments.sections.data import DataArgs
from megatron.runtime.world import World

SEQ = 8
BOTH = Boundaries(reset_position_ids=True, reset_attention_mask=True)
# Empty ones, ones shorter than a sample, exactly as long, and longer than three.
SIZES = [3, 0, 1, 30, 8, 9, 0, 0, 2, 17, 5] * 6
BATCH = SimpleNamespace(
    global_batch_size=6,
    micro_batch_size=3,
    gradient_accumulation_steps=2,
    data_parallel_size=1,
)


def documents(first: int = 1) -> list[list[int]]:
    """Tokens that count up through all documents, so that each says where it stands."""
    found = []
    for size in SIZES:
        found.append(list(range(first, first + size)))
        first += size
    return found


def firsts(first: int = 1) -> set[int]:
    """The first tokens of :func:`documents`."""
    return {document[0] for document in documents(first) if document}


def train_split(settings: DataArgs) -> Samples:
    split = build_datasets(
        DataRequest(
            settings,
            seq_length=SEQ,
            seed=1,
            wanted=SampleCounts(120, 0, 0),
        ),
        World(),
    ).train
    assert split is not None
    return split


def steps(
    split: Samples, *, boundaries: Boundaries | None = BOTH, first_sample: int = 0, workers: int = 0
) -> list[StepBatch]:
    loader = build_step_loader(
        split,
        first_sample=first_sample,
        num_steps=4,
        batch=BATCH,
        data_rank=0,
        num_workers=workers,
        boundaries=boundaries,
    )
    found = list(loader)
    loader.close()
    return found


def starts_of(step: StepBatch) -> list[list[list[int]]]:
    """The places without the filling, which is checked on the way."""
    assert step.documents is not None
    starts = step.documents.starts
    assert starts.dtype == torch.int32
    assert starts.shape[:2] == (2, 3)
    for row in starts.flatten(0, 1).tolist():
        real = [place for place in row if place < SEQ]
        assert row == real + [SEQ] * (len(row) - len(real))
        assert all(a < b for a, b in pairwise(real))
    return [[[p for p in row if p < SEQ] for row in micro] for micro in starts.tolist()]


def expected(step: StepBatch, first_tokens: set[int]) -> list[list[list[int]]]:
    def of(sample: list[int]) -> list[int]:
        return [i for i, token in enumerate(sample[:-1]) if i == 0 or token in first_tokens]

    return [[of(sample) for sample in micro] for micro in step.tokens.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["neox", "epochs"])
def test_starts_are_those_of_the_documents(tmp_path: Path, order: str, workers: int) -> None:
    prefix = write_documents(tmp_path / "d", documents())
    split = train_split(data_args(prefix, data_order=order))
    whole = steps(split, workers=workers)
    for step in whole:
        assert starts_of(step) == expected(step, firsts())
    counts = {len(row) for step in whole for micro in starts_of(step) for row in micro}
    assert min(counts) == 1
    assert max(counts) >= 3
    # A document of which a sample has nothing but the last label is no input.
    assert any(row[-1] in firsts() for s in whole for micro in s.tokens.tolist() for row in micro)
    # After a restart they are the same.
    for again, step in zip(steps(split, first_sample=6), whole[1:], strict=False):
        assert starts_of(again) == starts_of(step)


def test_a_blend_has_those_of_its_members(tmp_path: Path) -> None:
    paths = [
        str(write_documents(tmp_path / name, documents(first)))
        for name, first in (("a", 1), ("b", 5001))
    ]
    settings = DataArgs(train_data_paths=tuple(paths), train_data_weights=(2.0, 1.0))
    for step in steps(train_split(settings)):
        assert {token > 5000 for token in step.tokens.flatten().tolist()} == {True, False}
        assert starts_of(step) == expected(step, firsts() | firsts(5001))


def test_samples_of_whole_documents_have_theirs(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", documents())
    split = train_split(data_args(prefix, pack_impl="pack_until_overflow"))
    whole = steps(split)
    for step in whole:
        # Padding, here an id of no document, begins nothing.
        assert starts_of(step) == expected(step, firsts())
    assert {len(row) for step in whole for micro in starts_of(step) for row in micro} >= {1, 2}


def test_ends_of_documents_in_the_text_are_no_boundaries(tmp_path: Path) -> None:
    """Documents of nothing but the end-of-document token: the index alone says where they begin."""
    lengths = [len(document) for document in documents()]
    prefix = write_documents(tmp_path / "d", [[7] * length for length in lengths])
    counted = train_split(data_args(write_documents(tmp_path / "counted", documents())))
    for step, reference in zip(steps(train_split(data_args(prefix))), steps(counted), strict=True):
        assert step.tokens.eq(7).all()
        assert starts_of(step) == starts_of(reference)


def test_nobody_looks_for_them_who_does_not_need_them(tmp_path: Path) -> None:
    split = train_split(data_args(write_documents(tmp_path / "d", documents())))
    assert all(step.documents is None for step in steps(split, boundaries=None))
    assert split[0].starts is None


@pytest.mark.parametrize("asked", [{"reset_position_ids": True}, {"reset_attention_mask": True}])
def test_one_key_is_one_consequence(asked: dict[str, Any]) -> None:
    assert Boundaries.of(DataArgs()) is None
    off = {"reset_position_ids": False, "reset_attention_mask": False}
    assert Boundaries.of(DataArgs(**asked)) == Boundaries(**off | asked)


def test_places_are_filled_up_with_the_length() -> None:
    found = DocumentStarts.collect([[0], [0, 2, 5], [0, 8], [0, 7]], (2, 2), SEQ, BOTH)
    assert found.starts.tolist() == [[[0, 8, 8], [0, 2, 5]], [[0, 8, 8], [0, 7, 8]]]
