"""Blends: whose turn it is, exact at every prefix, and what is read at the end."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_files import data_args, letters, write_documents

from megatron.data.blend import counts_before, document_weights, given_after, turns, units_of
from megatron.data.blended_dataset import BlendedDataset
from megatron.data.datasets import DataRequest, DataSplits, build_datasets
from megatron.data.run_length import run_length
from megatron.data.splits import SampleCounts
from megatron.errors import DataError
from megatron.runtime.world import World

weights_lists = st.lists(st.integers(1, 999).map(lambda n: n / 1000), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("weights", "units"),
    [
        ([0.7, 0.3], (7, 3)),
        ([900.0, 100.0], (9, 1)),
        ([0.001, 0.999], (1, 999)),
        ([1.0, 1.0, 1.0], (1, 1, 1)),
        ([5.0], (1,)),
        ([0.1, 0.2, 0.7], (1, 2, 7)),  # as written, not as floats add up
    ],
)
def test_weights_are_what_is_written(weights: list[float], units: tuple[int, ...]) -> None:
    assert units_of(weights) == units


def test_weights_with_many_digits_stay_weights() -> None:
    weights = [0.123456789012345, 1e-14, 0.3141592653589793]
    units = units_of(weights)
    assert sum(units) <= 2**40 + 3
    assert min(units) == 1
    assert units[0] / units[2] == pytest.approx(weights[0] / weights[2], rel=1e-10)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        # Windows of member 1 of 7 and 3: turns 0-3, 3-6, 6-9; it waits for the last that it may have
        # only where member 0's end earlier.
        ((7, 3), [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]),
        ((1, 1), [0, 1]),
        ((1, 1, 2), [2, 0, 1, 2]),
        ((1,), [0]),
    ],
)
def test_turns_by_hand(units: tuple[int, ...], expected: list[int]) -> None:
    assert turns(units, len(expected)).tolist() == expected
    assert turns(units, 3 * len(expected)).tolist() == 3 * expected


def worst_distance(units: tuple[int, ...], length: int) -> float:
    """The largest |samples given - weight × turns| of any member after any number of turns."""
    members = turns(units, length)
    shares = np.array(units) / sum(units)
    given = np.cumsum(members[:, None] == np.arange(len(units)), axis=0)
    expected = np.arange(1, length + 1)[:, None] * shares
    return float(np.abs(given - expected).max())


@settings(max_examples=60, deadline=None)
@given(weights=weights_lists)
def test_every_prefix_is_within_one_sample(weights: list[float]) -> None:
    assert worst_distance(units_of(weights), 700) < 1


def test_300_members_from_a_thousandth_to_nearly_all() -> None:
    rng = np.random.default_rng(5)
    weights = [0.001, 0.999, *np.round(rng.uniform(0.001, 0.999, 298), 3).tolist()]
    assert worst_distance(units_of(weights), 5000) < 1


@settings(max_examples=60, deadline=None)
@given(weights=weights_lists, samples=st.integers(0, 4000))
def test_a_period_stands_for_the_whole(weights: list[float], samples: int) -> None:
    units = units_of(weights)
    whole = turns(units, samples)
    period = turns(units, min(sum(units), samples))
    counts = np.bincount(whole, minlength=len(units))
    assert given_after(units, period, samples).tolist() == counts.tolist()
    seen = [0] * len(units)
    for member, number in zip(whole.tolist(), counts_before(whole, len(units)), strict=True):
        assert number == seen[member]
        seen[member] += 1


def test_weights_from_documents() -> None:
    assert units_of(document_weights([900, 100], 1.0)) == (9, 1)
    assert units_of(document_weights([900, 100], 0.0)) == (1, 1)
    assert document_weights([900, 100], 0.5)[1] == pytest.approx(1 / 3)
    assert min(document_weights([10**9, 1], 50.0)) > 0


# Whole datasets. Member d has ids from 1000 × d on, so that a token tells whose it is.


def write_member(folder: Path, number: int, documents: int, length: int = 11) -> str:
    texts = [[1000 * number + t for t in text] for text in letters(documents, length)]
    return str(write_documents(folder / f"m{number}", texts, np.int32))


def blend(
    paths: list[str], samples: int, weights: list[float] | None = None, **options: Any
) -> DataSplits:
    extra = {"train_epochs": options.pop("train_epochs", None)}
    args = data_args(
        Path("unused"),
        data_path=None,
        train_data_paths=tuple(paths),
        train_data_weights=tuple(weights) if weights else None,
        **options,
    )
    wanted = SampleCounts(samples, 0, 0)
    return build_datasets(
        DataRequest(
            args,
            seq_length=8,
            seed=1,
            wanted=wanted,
            **extra,
        ),
        World(),
    )


def members_read(data: DataSplits) -> list[int]:
    assert data.train is not None
    return [int(data.train[i].tokens[0]) // 1000 for i in range(len(data.train))]


def test_samples_are_the_members_own_in_their_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [write_member(tmp_path, 0, 20), write_member(tmp_path, 1, 5)]
    caplog.set_level(logging.INFO)
    data = blend(paths, 25, [0.7, 0.3])
    assert isinstance(data.train, BlendedDataset)
    assert members_read(data) == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1] * 2 + [0, 0, 1, 0, 0]
    taken = [0, 0]
    for i, member in enumerate(members_read(data)):
        assert (
            data.train[i].tokens.tolist()
            == data.train.members[member][taken[member]].tokens.tolist()
        )
        taken[member] += 1
    assert taken == data.train.given.tolist() == [18, 7]
    # ceil(25 × 0.3 × 1.005) = 8 samples: 65 tokens, two epochs of 55; the other 18: one of 220.
    assert [len(member) for member in data.train.members] == [27, 13]
    lines = [record.getMessage() for record in caplog.records]
    assert "train blend: 2 datasets, 25 samples; share asked for → read" in lines
    assert f"  30.000% → 28.000%  7 samples, 1.17 epochs  {paths[1]}" in lines
    with pytest.raises(
        IndexError, match="sample 25 of the train blend of 2 datasets, which has 25"
    ):
        data.train[25]
    received = pickle.loads(pickle.dumps(data.train))
    assert received[24].tokens.tolist() == data.train[24].tokens.tolist()


def test_the_order_of_turns_is_stored_and_found_again(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, n, 9 + n) for n in range(3)]
    first = blend(paths, 12, [1, 2, 3])
    folders = sorted((tmp_path / "index_store").glob("*/manifest.json"))
    times = [path.stat().st_mtime_ns for path in folders]
    assert len(folders) == 4
    again = blend(paths, 12, [0.1, 0.2, 0.3])  # the same weights
    assert again.index_keys == first.index_keys
    assert [path.stat().st_mtime_ns for path in folders] == times
    assert first.train is not None
    for stored in first.train.stored:
        stored.verify()
    other = blend(paths, 12, [1, 2, 4])
    assert other.index_keys != first.index_keys
    assert other.order_facts["train"]["dataset 3 weight"] == 4


def test_one_path_is_data_path_with_the_whole_file(tmp_path: Path) -> None:
    path = write_member(tmp_path, 0, 7)
    one = blend([path], 10)
    usual = build_datasets(
        DataRequest(
            data_args(Path(path), split="1,0,0"),
            seq_length=8,
            seed=1,
            wanted=SampleCounts(10, 0, 0),
        ),
        World(),
    )
    assert one.index_keys == usual.index_keys
    assert one.order_facts == usual.order_facts
    assert len(list((tmp_path / "index_store").glob("*/manifest.json"))) == 1
    assert one.facts == usual.facts


def test_300_datasets_of_one_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As many turns as there are samples: each once, no second epoch, none left out."""
    caplog.set_level(logging.INFO)
    paths = [write_member(tmp_path, n, 1, 9) for n in range(300)]
    data = blend(paths, 300, train_epochs=1)
    assert sorted(members_read(data)) == list(range(300))
    assert data.facts.splits["train"].epochs == 1
    assert len([r for r in caplog.records if r.name.startswith("megatron.data")]) < 15
    assert "291 more" not in caplog.text
    assert "292 more" in caplog.text


@pytest.mark.parametrize("order", ["neox", "epochs"])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_exact_multiples_of_an_epoch(tmp_path: Path, order: str, epochs: int) -> None:
    """Read by ``train_epochs`` without weights, each member gives all that it has, and nothing twice."""
    sizes = {0: 16, 1: 8, 2: 1}
    paths = [write_member(tmp_path, n, documents, 9) for n, documents in sizes.items()]
    settings = data_args(
        Path("unused"), data_path=None, train_data_paths=tuple(paths), data_order=order
    )
    length = run_length(
        settings, epochs=epochs, seq_length=8, seed=1, global_batch_size=1, world=World()
    )
    data = blend(paths, length.steps, train_epochs=epochs, data_order=order)
    facts = data.facts.splits["train"]
    assert facts.epochs == epochs
    assert isinstance(data.train, BlendedDataset)
    assert data.train.given.tolist() == [len(member) for member in data.train.members]


def test_a_rare_member_may_have_no_turn(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, n, 9) for n in range(2)]
    data = blend(paths, 5, [0.001, 0.999])
    assert members_read(data).count(0) <= 1
    assert len(members_read(data)) == 5


def test_weights_by_documents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [write_member(tmp_path, 0, 90), write_member(tmp_path, 1, 10)]
    data = blend(paths, 20, [1, 1], weight_by_num_documents=True)
    assert np.bincount(members_read(data)).tolist() == [18, 2]
    assert "weight_by_num_documents: train_data_weights is not used" in caplog.text
    alike = blend(paths, 20, weight_by_num_documents=True, weighted_sampler_alpha=0.0)
    assert np.bincount(members_read(alike)).tolist() == [10, 10]


def test_members_that_have_nothing_or_too_little(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, 0, 9), write_member(tmp_path, 1, 1, 5)]
    with pytest.raises(DataError, match="5 tokens are not one whole sample with seq_length 8"):
        blend(paths, 5)
    whole = blend([paths[0], write_member(tmp_path, 2, 9)], 10).train
    assert isinstance(whole, BlendedDataset)
    with pytest.raises(DataError, match=r"m0: runs out: 500 of the 1,000 samples"):
        BlendedDataset(whole.members, whole.maps, units=whole.units, samples=1000)
    with pytest.raises(DataError, match="no such file"):
        blend([paths[0], str(tmp_path / "nothing")], 5)


def test_a_longer_run_reads_the_same_at_its_start(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, n, 9 + n) for n in range(3)]
    short = blend(paths, 10, [1, 2, 5], data_order="epochs")
    long = blend(paths, 90, [1, 2, 5], data_order="epochs")
    assert short.train is not None
    assert long.train is not None
    assert short.index_keys == long.index_keys
    for i in range(10):
        assert short.train[i].tokens.tolist() == long.train[i].tokens.tolist()


def test_splits_have_their_own_files(tmp_path: Path) -> None:
    paths = [write_member(tmp_path, n, 9) for n in range(4)]
    settings = data_args(
        Path("unused"),
        data_path=None,
        train_data_paths=(paths[0], paths[1]),
        valid_data_paths=(paths[2],),
    )
    data = build_datasets(
        DataRequest(
            settings,
            seq_length=8,
            seed=1,
            wanted=SampleCounts(8, 4, 4),
        ),
        World(),
    )
    assert data.valid is not None
    assert {int(data.valid[i].tokens[0]) // 1000 for i in range(4)} == {2}
    assert data.test is None
    assert "test_data_paths is not set: there is no test split" in data.facts.warnings
    assert (data.facts.documents, data.facts.tokens) == (27, 297)
