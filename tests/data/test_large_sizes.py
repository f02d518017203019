"""Past 2^31 tokens and bytes: sparse files, read through index maps at places that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.index_file import FIELDS, MMAP_MAGIC
from megatron.data.index_maps import IndexShape
from megatron.data.index_writing import write_index
from megatron.data.indexed_dataset import make_dataset
from megatron.data.splits import SampleCounts
from megatron.runtime.world import World
from tests.data.token_files import build_arrays, data_args

DOCUMENT = 1_500_000_001  # tokens, i32: the second document starts past 2^32 bytes
COUNT = 3
SEQ_LENGTH = 1 << 20


@pytest.fixture(params=["mmap", "cached"])
def prefix(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Three documents of zeros; the first and the last token of each are 10 d + 1 and 10 d + 2."""
    sizes = np.full(COUNT, DOCUMENT, np.int32)
    doc_idx = np.arange(COUNT + 1, dtype=np.int64)
    with open(tmp_path / "d.idx", "wb") as file:
        if request.param == "cached":
            write_index(file, "cached", np.dtype("<i4"), sizes, doc_idx)
        else:
            file.write(MMAP_MAGIC + FIELDS.pack(1, 4, COUNT, COUNT + 1) + sizes.tobytes())
            file.write((doc_idx[:-1] * DOCUMENT * 4).tobytes() + doc_idx.tobytes())
    with open(tmp_path / "d.bin", "wb") as file:
        file.truncate(COUNT * DOCUMENT * 4)
        for number in range(COUNT):
            for token, mark in ((0, 1), (DOCUMENT - 1, 2)):
                file.seek((number * DOCUMENT + token) * 4)
                file.write(np.int32(10 * number + mark).tobytes())
    return tmp_path / "d"


def test_tokens_past_the_limits_are_found(prefix: Path) -> None:
    data = make_dataset(prefix)
    data.verify()
    assert data.num_tokens == COUNT * DOCUMENT > 2**32
    for number in range(COUNT):
        assert data.get(number, 0, 2).tolist() == [10 * number + 1, 0]
        assert data.get(number, DOCUMENT - 2).tolist() == [0, 10 * number + 2]


def test_samples_cross_the_documents_in_their_order(prefix: Path) -> None:
    samples = (COUNT * DOCUMENT - 1) // SEQ_LENGTH
    train = build_datasets(
        DataRequest(
            data_args(prefix),
            seq_length=SEQ_LENGTH,
            seed=5,
            wanted=SampleCounts(samples, 0, 0),
        ),
        World(),
    ).train
    assert train is not None
    order = train.maps.doc_idx.tolist()
    assert sorted(order) == list(range(COUNT))
    shuffled = train.maps.shuffle_idx.tolist()
    for place in (1, 2):  # where one document ends and the next one starts
        token = place * DOCUMENT
        sample = train[shuffled.index(token // SEQ_LENGTH)].tokens
        at = token % SEQ_LENGTH
        assert sample[at - 1 : at + 1].tolist() == [
            10 * order[place - 1] + 2,
            10 * order[place] + 1,
        ]


def test_rows_are_exact_over_many_epochs() -> None:
    sizes, epochs = np.array([2**31 - 1, 7, 2**31 - 2], np.int32), 5
    tokens = sum(sizes.tolist())
    shape = IndexShape(0, 3, tokens, 1 << 26, epochs, "neox")
    arrays = build_arrays(shape, sizes, 1)
    ends = np.cumsum([0, *(int(sizes[document]) for document in arrays["doc_idx"])], dtype=object)
    assert len(arrays["sample_idx"]) == (epochs * tokens - 1) // (1 << 26) + 1
    for row, (position, offset) in enumerate(arrays["sample_idx"].tolist()):
        assert ends[position] + offset == row << 26
        assert 0 <= offset < int(sizes[arrays["doc_idx"][position]])
