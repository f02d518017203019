"""From token files to samples: splits, orders, what is too little, what is wrong."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_files import data_args, letters, write_documents

from megatron.data.datasets import DataRequest, DataSplits, build_datasets
from megatron.data.opening import open_files
from megatron.data.plan import plan_indexes
from megatron.data.sources import store_of
from megatron.data.split_plan import describe_difference
from megatron.data.splits import SampleCounts
from megatron.errors import BarrierError, DataError, NeoXError
from megatron.runtime.world import World


def build(
    prefix: Path, counts: tuple[int, int, int] = (6, 0, 0), seq_length: int = 8, **options: Any
) -> DataSplits:
    data = {key: options.pop(key) for key in list(options) if key in vars(data_args(prefix))}
    return build_datasets(
        DataRequest(
            data_args(prefix, **data),
            seq_length=seq_length,
            seed=options.pop("seed", 1234),
            wanted=SampleCounts(*counts),
            **options,
        ),
        World(),
    )


def message(prefix: Path, *args: Any, **options: Any) -> str:
    with pytest.raises(NeoXError) as caught:
        build(prefix, *args, **options)
    assert len(str(caught.value).splitlines()) <= 10
    return str(caught.value)


@pytest.mark.parametrize("order", ["neox", "epochs"])
@pytest.mark.parametrize("seq_length", [1, 8, 30])
def test_samples_are_the_tokens_of_the_shuffled_documents(
    tmp_path: Path, order: str, seq_length: int
) -> None:
    documents = [*letters(7), [], [900], [901, 902]]
    data = build(
        write_documents(tmp_path / "d", documents), (23, 0, 0), seq_length, data_order=order
    )
    train = data.train
    assert train is not None
    epochs = data.facts.splits["train"].epochs
    stream = [t for document in train.maps.doc_idx.tolist() for t in documents[document]]
    seen = []
    for i in range(len(train)):
        sample = train[i].tokens
        assert sample.dtype == np.int64
        assert sample.shape == (seq_length + 1,)
        row = int(train.maps.shuffle_idx[i])
        if order == "neox":
            assert sample.tolist() == stream[row * seq_length : (row + 1) * seq_length + 1]
        else:
            number, row = divmod(row, len(train) // epochs + 1)
            start = number * len(stream) // epochs + row * seq_length
            assert sample.tolist() == stream[start : start + seq_length + 1]
        seen.append(row)
    assert len(train) == data.facts.splits["train"].samples >= 23
    assert len(set(seen)) == len(seen) // (1 if order == "neox" else epochs)


def test_the_last_sample_counts_and_nothing_lies_beyond_it(tmp_path: Path) -> None:
    train = build(write_documents(tmp_path / "d", letters(5))).train  # 55 tokens, 6 samples
    assert train is not None
    assert len(train) == 6
    ends = [int(train[i].tokens[-1]) for i in range(6)]
    last_document = int(train.maps.doc_idx[-1])
    assert last_document * 11 + 4 in ends  # token 48 of 55: the sixth sample
    for beyond in (6, -1, np.int64(7)):
        with pytest.raises(IndexError, match="of the train split, which has 6"):
            train[beyond]


def test_a_dataset_travels_as_the_names_of_its_files(tmp_path: Path) -> None:
    train = build(write_documents(tmp_path / "d", letters(5)), vocab_size=60).train
    sent = pickle.dumps(train)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert train is not None
    assert [received[i].tokens.tolist() for i in range(6)] == [
        train[i].tokens.tolist() for i in range(6)
    ]


def test_documents_of_a_split_are_numbered_in_the_file(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(10))
    data = build(prefix, (5, 5, 5), split="50,30,20")
    numbers = {
        split.name: set(split.maps.doc_idx.tolist())
        for split in (data.train, data.valid, data.test)
        if split is not None
    }
    assert numbers == {
        "train": {0, 1, 2, 3, 4},
        "valid": {5, 6, 7},
        "test": {8, 9},
    }
    facts = data.facts.splits["valid"]
    assert (facts.documents, facts.tokens, facts.bytes, facts.samples_per_epoch) == (3, 33, 66, 4)
    assert (facts.epochs, facts.samples, facts.wanted) == (2, 8, 5)
    assert (data.facts.documents, data.facts.tokens) == (10, 110)


@pytest.mark.parametrize(
    ("split", "has_valid", "has_test"),
    [("9998,0.002,0.002", False, False), ("969,30,1", True, False), ("1000,0,0", False, False)],
)
def test_a_split_with_nothing_in_it_is_none_and_said(
    tmp_path: Path, split: str, has_valid: bool, has_test: bool
) -> None:
    prefix = write_documents(tmp_path / "d", letters(20))
    data = build(prefix, (6, 2, 2), split=split)
    assert data.train is not None
    assert (data.valid is not None, data.test is not None) == (has_valid, has_test)
    said = [line for line in data.facts.warnings if "it is not evaluated" in line]
    assert len(said) == (not has_valid) + (not has_test)
    assert all(split in line and str(prefix) in line for line in said)
    assert data.index_keys.keys() == data.facts.splits.keys()


def test_what_is_not_wanted_is_not_built(tmp_path: Path) -> None:
    data = build(write_documents(tmp_path / "d", letters(20)), (6, 0, 0), split="50,25,25")
    assert (data.valid, data.test) == (None, None)
    assert data.facts.warnings == ()


def test_a_corpus_smaller_than_one_sample_per_rank_is_refused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(5))
    assert build(prefix, data_parallel_size=6).train is not None
    text = message(prefix, data_parallel_size=7)
    for part in (str(prefix), "55 tokens", "seq_length 8: 6 whole samples", "7 data-parallel"):
        assert part in text
    assert "0 whole samples" in message(prefix, seq_length=55)
    assert "0 of 5 documents" in message(prefix, split="0,1,0")


@pytest.mark.parametrize("order", ["neox", "epochs"])
def test_evaluation_on_very_little_goes_on_and_is_said(tmp_path: Path, order: str) -> None:
    prefix = write_documents(tmp_path / "d", [*letters(19), [1, 2, 3]])
    data = build(prefix, (6, 2, 0), split="19,1,0", data_order=order)
    if order == "neox":
        assert data.valid is not None
        assert sorted(data.valid[1].tokens.tolist()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert "reads them repeatedly" in data.facts.warnings[0]
    else:
        assert data.valid is None
        assert "not one whole sample" in data.facts.warnings[0]


def test_ids_beyond_the_vocabulary_are_found_at_the_start(tmp_path: Path) -> None:
    documents = letters(5)
    documents[3][4] = 60
    prefix = write_documents(tmp_path / "d", documents)
    assert build(prefix, vocab_size=61).train is not None
    text = message(prefix, vocab_size=60)
    for part in (f"{prefix}.bin", "token 4 of document 3 has the id 60", "ids from 0 to 59"):
        assert part in text
    write_documents(tmp_path / "n", [[1] * 20, [2, -5] * 9], np.int32)
    assert "token 1 of document 1 has the id -5" in message(tmp_path / "n", vocab_size=60)


def test_data_that_is_missing_or_cut(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
    assert "data_path is not set" in message(tmp_path, data_path=None)
    prefix = write_documents(tmp_path / "d", letters(5))
    with open(f"{prefix}.bin", "r+b") as file:
        file.truncate(100)
    assert "has 100 bytes" in message(prefix)
    assert not (tmp_path / "index_store").exists()


def test_damage_inside_the_index_is_found_before_it_is_trusted(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(5))
    with open(f"{prefix}.idx", "r+b") as file:
        file.seek(34)
        file.write(b"\x0c\x00\x00\x00\x0a\x00\x00\x00")  # sizes 12, 10 for 11, 11
    assert "the file is damaged" in message(prefix)


def test_the_order_key_tells_what_would_change_the_samples(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(20))
    base = build(prefix)
    assert build(prefix, (7, 0, 0)).index_keys == base.index_keys  # in the same epoch
    for change in ({"counts": (60, 0, 0)}, {"seed": 1}, {"seq_length": 9}, {"split": "9,1,0"}):
        assert build(prefix, **change).index_keys != base.index_keys  # type: ignore[arg-type]

    epochs = build(prefix, data_order="epochs")
    longer = build(prefix, (60, 0, 0), data_order="epochs")
    assert epochs.index_keys == longer.index_keys != base.index_keys
    assert epochs.train is not None
    assert longer.train is not None
    assert len(longer.train) == 3 * len(epochs.train)
    for i in range(len(epochs.train)):
        assert epochs.train[i].tokens.tolist() == longer.train[i].tokens.tolist()

    changes = describe_difference(
        base.order_facts["train"], build(prefix, (60, 0, 0), seed=1).order_facts["train"]
    )
    assert changes == ["epochs: 1 → 3", "seed: 1234 → 1"]


def test_the_errors_are_of_the_kinds_that_are_shown_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        build(tmp_path / "nothing")
    prefix = write_documents(tmp_path / "d", letters(5))
    (tmp_path / "file").touch()
    with pytest.raises(BarrierError, match="index_cache_dir"):
        build(prefix, index_cache_dir=str(tmp_path / "file"))


def test_a_file_that_changes_before_all_have_opened_it_is_said(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(5))
    request = DataRequest(data_args(prefix), 8, 1, SampleCounts(3, 0, 0))
    plan = plan_indexes(request, store_of(request.settings))
    write_documents(prefix, letters(6))
    with pytest.raises(BarrierError, match=r"has 6 documents in 132 bytes here.*found 5 in 110"):
        open_files(request.settings, plan, World())
