"""Label files beside the text: what is learnt, and files that do not fit."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_files import data_args, write_documents

from megatron.data.datasets import DataRequest, Samples, build_datasets
from megatron.data.loader import build_step_loader
from megatron.data.splits import SampleCounts
from megatron.data.step_batch import StepBatch
from megatron.errors import DataError
from megatron.neox_arguments import BatchSizes
from megatron.runtime.world import World

TEXT = [[1, 2, 3, 4], [11, 12, 13, 14, 15, 16], [21, 22, 23]]
LABELS = [[-100, 2, -100, 4], [-100, -100, -100, 14, 15, 90], [21, -100, -100]]


def build(folder: Path, labels: Any = LABELS, **changes: Any) -> Samples:
    settings = data_args(
        Path("unused"),
        data_path=None,
        train_data_paths=(str(write_documents(folder / "text", TEXT)),),
        train_label_data_paths=(str(write_documents(folder / "label", labels, np.int32)),),
        **changes,
    )
    wanted = SampleCounts(3, 0, 0)
    train = build_datasets(
        DataRequest(
            settings,
            seq_length=4,
            seed=1,
            wanted=wanted,
            vocab_size=100,
            pad_id=99,
        ),
        World(),
    ).train
    assert train is not None
    return train


def steps(train: Samples, **options: Any) -> StepBatch:
    batch = BatchSizes(3, 3, 1, 1)
    with build_step_loader(
        train, first_sample=0, num_steps=1, batch=batch, data_rank=0, num_workers=0, **options
    ) as loader:
        return next(loader)


def test_labels_are_held_against_the_prediction_before_them(tmp_path: Path) -> None:
    step = steps(build(tmp_path, pack_impl="unpacked"))
    assert step.targets.shape == step.inputs.shape == step.loss_mask.shape == (1, 3, 4)
    learnt = {
        int(row[0]): [(i, o) for i, o, m in zip(row, out, mask, strict=True) if m]
        for row, out, mask in zip(
            step.inputs[0].tolist(),
            step.targets[0].tolist(),
            step.loss_mask[0].tolist(),
            strict=True,
        )
    }
    # What follows 21 is not learnt: the label 21 itself would be what follows nothing.
    assert learnt == {1: [(1, 2), (3, 4)], 11: [(13, 14), (14, 15)], 21: []}
    assert int(step.targets.min()) >= 0


@pytest.mark.parametrize("packing", ["packed", "pack_until_overflow"])
def test_labels_stay_beside_their_tokens(tmp_path: Path, packing: str) -> None:
    train = build(tmp_path, pack_impl=packing)
    beside = dict(zip(chain(*TEXT), chain(*LABELS), strict=True))
    for i in range(len(train)):
        sample = train[i]
        assert sample.labels is not None
        read = sample.tokens[: sample.length].tolist()
        assert sample.labels[: sample.length].tolist() == [beside[token] for token in read]
        assert (sample.labels[sample.length :] == -100).all()


def test_what_follows_the_end_of_a_document_is_masked_too(tmp_path: Path) -> None:
    step = steps(build(tmp_path, pack_impl="unpacked"), eod_id=13)
    assert not step.loss_mask[step.inputs == 13].any()
    assert step.loss_mask[step.inputs == 14].any()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[:2], r"found: 2 documents\n  expected: 3, as in the text"),
        (
            [*LABELS[:2], [1, 2]],
            r"found: 2 labels for document 2\n  expected: 3, one for each token",
        ),
        ([[1, 100, 1, 1], *LABELS[1:]], r"token 1 of document 0 has the id 100"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        build(tmp_path, labels)
    assert str(tmp_path / "label") in str(error.value)


def test_a_label_beyond_the_vocabulary_is_said_with_its_place(tmp_path: Path) -> None:
    train = build(tmp_path)
    labels = np.memmap(tmp_path / "label.bin", np.int32, mode="r+")
    labels[9] = 100
    labels.flush()
    with pytest.raises(DataError, match=r"label\.bin: token 5 of document 1 has the id 100"):
        steps(train)
