"""A training blend that changes in mid-run: no dataset repeats or leaves out a sample of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from token_files import data_args, letters, write_documents

from megatron.data.blended_dataset import BlendedDataset
from megatron.data.datasets import DataRequest, DataSplits, build_datasets
from megatron.data.progress import Progress
from megatron.data.splits import SampleCounts
from megatron.errors import DataError
from megatron.runtime.world import World

SEQ = 8


def write_member(folder: Path, number: int, documents: int) -> str:
    texts = [[1000 * number + t for t in text] for text in letters(documents)]
    return str(write_documents(folder / f"m{number}", texts, np.int32))


def build(
    paths: Sequence[str],
    samples: int,
    weights: Sequence[float] | None = None,
    progress: Progress | None = None,
    **options: str,
) -> DataSplits:
    settings = data_args(
        Path("unused"),
        data_path=None,
        train_data_paths=tuple(paths),
        train_data_weights=None if weights is None else tuple(weights),
        **({"data_order": "epochs"} | options),
    )
    return build_datasets(
        DataRequest(
            settings,
            seq_length=SEQ,
            seed=1,
            wanted=SampleCounts(samples, 0, 0),
            progress=progress,
        ),
        World(),
    )


def saved(data: DataSplits, consumed: int) -> Progress:
    """What a resumed run finds in its checkpoint."""
    progress = data.progress_at(consumed)
    assert progress is not None
    return Progress.from_dict(json.loads(json.dumps(progress.as_dict())))


def read(data: DataSplits, first: int, stop: int) -> list[list[int]]:
    assert data.train is not None
    return [data.train[i].tokens.tolist() for i in range(first, stop)]


@pytest.mark.parametrize("packing", ["packed", "unpacked"])
def test_members_join_leave_and_come_back(tmp_path: Path, packing: str) -> None:
    a, b, c = (write_member(tmp_path, number, 6) for number in range(3))
    legs: list[tuple[list[str], list[float] | None]] = [
        ([a], None),
        ([a, b], [3, 1]),
        ([a, b], [1, 1]),
        ([c, a], [0.9, 0.1]),
        ([b, c, a], [1, 1, 2]),
        ([b], None),
    ]
    order = "epochs" if packing == "packed" else "neox"
    whole = {path: build([path], 200, pack_impl=packing, data_order=order) for path in (a, b, c)}
    taken: dict[int, list[list[int]]] = {0: [], 1: [], 2: []}
    progress, consumed = None, 0
    for number, (paths, weights) in enumerate(legs):
        stop = consumed + 7 + number
        # Asking for more samples than are taken: runs stop before their end.
        data = build(paths, stop + 20, weights, progress, pack_impl=packing, data_order=order)
        half = consumed + 4
        samples = read(data, consumed, half)
        again = build(paths, stop, weights, saved(data, half), pack_impl=packing, data_order=order)
        samples += read(again, half, stop)
        assert samples == read(data, consumed, stop)
        for sample in samples:
            taken[sample[0] // 1000].append(sample)
        progress, consumed = saved(again, stop), stop
    assert sorted(progress.given.values()) == sorted(map(len, taken.values()))
    assert sum(progress.given.values()) == consumed == sum(map(len, taken.values()))
    for number, path in enumerate((a, b, c)):
        assert len(taken[number]) > 8  # into the second epoch
        assert taken[number] == read(whole[path], 0, len(taken[number]))


def test_shares_of_a_leg_are_exact_at_every_prefix(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, number, 30) for number in range(3)]
    before = build(paths[:2], 40, [0.7, 0.3])
    after = build(paths, 140, [0.5, 0.3, 0.2], saved(before, 33))
    assert isinstance(after.train, BlendedDataset)
    members = [sample[0] // 1000 for sample in read(after, 33, 140)]
    for turns in range(1, len(members) + 1):
        counts = np.bincount(members[:turns], minlength=3)
        assert (abs(counts - turns * np.array([0.5, 0.3, 0.2])) < 1).all()
    with pytest.raises(IndexError, match="which has 140 from 33 on"):
        after.train[32]


def test_a_file_of_equal_size_is_another_dataset(tmp_path: Path) -> None:
    a, b = (write_member(tmp_path, number, 6) for number in range(2))
    first, swapped = build([a, b], 10, [1, 1]), build([b, a], 10, [1, 1])
    facts = first.order_facts["train"]
    assert facts["dataset 1 idx_sha256"] == facts["dataset 2 idx_sha256"]
    assert facts["dataset 1 content"] != facts["dataset 2 content"]
    assert first.index_keys != swapped.index_keys
    moved = build([write_member(tmp_path / "other", number, 6) for number in range(2)], 10, [1, 1])
    assert moved.index_keys == first.index_keys


def test_copies_are_not_two_members(tmp_path: Path) -> None:
    a = write_member(tmp_path, 0, 6)
    copy = write_member(tmp_path / "copy", 0, 6)
    with pytest.raises(DataError, match=f"{copy}: holds the same as {a}: name one of them"):
        build([a, copy], 10, [1, 1])
    assert build([a, copy], 10, [1, 1], data_order="neox").train is not None


def test_the_order_of_gpt_neox_has_no_positions(tmp_path: Path) -> None:
    assert build([write_member(tmp_path, 0, 6)], 10, data_order="neox").progress_at(5) is None


def test_train_epochs_reads_what_is_left(tmp_path: Path) -> None:
    """Added in the middle, a dataset is read once and the others to their ends, without another epoch."""
    a, b = write_member(tmp_path, 0, 16), write_member(tmp_path, 1, 8)

    def epochs(paths: list[str], samples: int, progress: Progress | None = None) -> DataSplits:
        settings = data_args(
            Path("unused"), data_path=None, train_data_paths=tuple(paths), data_order="epochs"
        )
        wanted = SampleCounts(samples, 0, 0)
        return build_datasets(
            DataRequest(
                settings,
                seq_length=SEQ,
                seed=1,
                wanted=wanted,
                train_epochs=1,
                progress=progress,
            ),
            World(),
        )

    whole = [epochs([path], 1).facts.splits["train"].samples_per_epoch for path in (a, b)]
    data = epochs([a, b], sum(whole), saved(epochs([a], whole[0]), 5))
    assert data.facts.splits["train"].epochs == 1
    members = [sample[0] // 1000 for sample in read(data, 5, sum(whole))]
    assert np.bincount(members).tolist() == [whole[0] - 5, whole[1]]


@pytest.mark.slow
def test_1000_datasets_change_in_mid_run(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, number, 2 + number % 30) for number in range(1000)]
    weights = np.random.default_rng(3).uniform(0.001, 0.999, 1000).round(3).tolist()
    first = build(paths[:990], 3000, weights[:990])
    after = build(paths, 5000, weights, saved(first, 2000))
    assert isinstance(after.train, BlendedDataset)
    counts = np.bincount(
        [sample[0] // 1000 for sample in read(first, 0, 2000) + read(after, 2000, 5000)],
        minlength=1000,
    )
    assert counts.tolist() == list(after.train.given_at(5000))
    expected = np.array([*weights[:990], *[0.0] * 10]) / sum(weights[:990]) * 2000
    expected += np.array(weights) / sum(weights) * 3000
    assert (abs(counts - expected) < 2).all()
