"""The order of samples against a slow, independent restatement of its definition."""

from __future__ import annotations

import random

import numpy as np
import pytest

from megatron.data import index_maps
from megatron.data.index_maps import (
    IndexShape,
    array_forms,
    epoch_seed,
    epochs_needed,
    samples_in,
)
from tests.data.token_files import build_arrays


def slow_maps(
    sizes: list[int], first: int, stop: int, seq_length: int, wanted: int, seed: int
) -> tuple[int, list[int], list[tuple[int, int]], list[int]]:
    """Epochs, doc_idx, sample_idx and shuffle_idx, token by token in plain Python."""
    per_epoch = sum(sizes[first:stop])
    epochs = 1
    while (epochs * per_epoch - 1) // seq_length < wanted:
        epochs += 1
    rng = np.random.RandomState(seed)
    documents = np.array([d for _ in range(epochs) for d in range(first, stop)], np.int32)
    rng.shuffle(documents)
    places = [
        (position, offset)
        for position, document in enumerate(documents.tolist())
        for offset in range(sizes[document])
    ]
    samples = (epochs * per_epoch - 1) // seq_length
    starts = [places[i * seq_length] for i in range(samples + 1)]
    shuffled = np.arange(samples, dtype=np.uint32)
    rng.shuffle(shuffled)
    return epochs, documents.tolist(), starts, shuffled.tolist()


def shape_of(
    sizes: list[int], first: int, stop: int, seq_length: int, wanted: int, order: str = "neox"
) -> IndexShape:
    tokens = sum(sizes[first:stop])
    epochs = epochs_needed(tokens, seq_length, wanted, order)  # type: ignore[arg-type]
    return IndexShape(first, stop, tokens, seq_length, epochs, order)  # type: ignore[arg-type]


@pytest.mark.parametrize("corpus", range(50))
@pytest.mark.parametrize("piece", [1 << 20, 7])
def test_fifty_random_corpora(corpus: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_maps, "_PIECE", piece)
    dice = random.Random(corpus)
    count = dice.randint(1, 60)
    sizes = [dice.randint(1, dice.choice([1, 5, 40, 200])) for _ in range(count)]
    first = dice.randint(0, count - 1)
    stop = dice.randint(first + 1, count)
    seq_length, wanted, seed = (
        dice.choice([1, 2, 7, 32]),
        dice.randint(1, 150),
        dice.randint(0, 2**32 - 1),
    )

    epochs, doc_idx, sample_idx, shuffle_idx = slow_maps(
        sizes, first, stop, seq_length, wanted, seed
    )
    shape = shape_of(sizes, first, stop, seq_length, wanted)
    arrays = build_arrays(shape, np.array(sizes[first:stop], np.int32), seed)

    assert shape.epochs == epochs
    assert arrays["doc_idx"].tolist() == doc_idx
    assert arrays["sample_idx"].tolist() == [list(place) for place in sample_idx]
    assert arrays["shuffle_idx"].tolist() == shuffle_idx
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == shape.arrays()
    assert [arrays[name].dtype for name in index_maps.ARRAY_NAMES] == [
        np.int32,
        np.int32,
        np.uint32,
    ]


def test_a_known_order() -> None:
    """Literal values, so that no change of NumPy or of this file can move the order unseen."""
    shape = shape_of([3, 1, 4, 2], 0, 4, 4, 4)
    arrays = build_arrays(shape, np.array([3, 1, 4, 2], np.int32), 1234)
    assert shape.epochs == 2
    assert arrays["doc_idx"].tolist() == [2, 1, 2, 0, 0, 1, 3, 3]
    assert arrays["sample_idx"].tolist() == [[0, 0], [1, 0], [2, 3], [4, 0], [6, 0]]
    assert arrays["shuffle_idx"].tolist() == [0, 2, 1, 3]


def test_empty_documents_give_the_same_tokens() -> None:
    sizes = np.array([0, 3, 0, 0, 2, 0], np.int32)
    shape = shape_of(sizes.tolist(), 0, 6, 2, 8)
    arrays = build_arrays(shape, sizes, 5)
    assert sizes[arrays["doc_idx"][0]] == 0
    stream = [
        (document, offset)
        for document in arrays["doc_idx"].tolist()
        for offset in range(sizes[document])
    ]
    position, offset = arrays["sample_idx"][0].tolist()
    assert (position, offset) == (0, 0)
    for row, (position, offset) in enumerate(arrays["sample_idx"].tolist()[1:], start=1):
        assert (arrays["doc_idx"][position], offset) == stream[2 * row]


@pytest.mark.parametrize(
    ("tokens", "seq_length", "wanted", "epochs"),
    [(9, 8, 1, 1), (8, 8, 1, 2), (17, 8, 2, 1), (16, 8, 2, 2), (1, 8, 1, 9), (100, 8, 0, 1)],
)
def test_no_needless_epoch(tokens: int, seq_length: int, wanted: int, epochs: int) -> None:
    assert epochs_needed(tokens, seq_length, wanted, "neox") == epochs
    assert samples_in(tokens, seq_length, epochs) >= wanted
    assert epochs == 1 or samples_in(tokens, seq_length, epochs - 1) < wanted


def test_epochs_by_themselves_do_not_depend_on_what_is_asked() -> None:
    sizes = [5, 9, 2, 7, 1, 30]
    array = np.array(sizes[1:], np.int32)
    short = build_arrays(shape_of(sizes, 1, 6, 4, 12, "epochs"), array, 7)
    long_shape = shape_of(sizes, 1, 6, 4, 30, "epochs")
    long = build_arrays(long_shape, array, 7)
    assert long_shape.epochs == 3
    assert long_shape.samples == 36
    for name in index_maps.ARRAY_NAMES:
        assert np.array_equal(long[name][: len(short[name])], short[name])

    starts = []
    for epoch in range(3):
        rows = long["shuffle_idx"][epoch * 12 : epoch * 12 + 12]
        places = long["sample_idx"][rows]
        assert {position // 5 for position in places[:, 0].tolist()} == {epoch}
        documents = long["doc_idx"][epoch * 5 : epoch * 5 + 5].tolist()
        assert sorted(documents) == [1, 2, 3, 4, 5]
        starts.append([(int(long["doc_idx"][p]), int(o)) for p, o in places])
    assert len({tuple(order) for order in starts}) == 3


def test_wide_types_past_two_to_the_31() -> None:
    def types(documents: int, tokens: int, seq_length: int, epochs: int) -> list[str]:
        shape = IndexShape(0, documents, tokens, seq_length, epochs, "neox")
        return [dtype.str for _, dtype in shape.arrays().values()]

    assert types(10**6, 10**9, 2048, 1) == ["<i4", "<i4", "<u4"]
    # 2 × (samples + 1) is 2^31 - 2, then 2^31.
    assert types(10, 2**30 - 1, 1, 1) == ["<i4", "<i4", "<u4"]
    assert types(10, 2**30, 1, 1) == ["<i4", "<i8", "<u4"]
    # Samples past 2^32, documents × epochs past 2^31, documents past 2^31.
    assert types(10, 2**32 + 10, 1, 1) == ["<i4", "<i8", "<i8"]
    assert types(2**30, 2**31, 2048, 3) == ["<i4", "<i8", "<u4"]
    assert types(2**31, 2**32, 2048, 1) == ["<i8", "<i8", "<u4"]


def test_wide_types_at_the_last_number_that_fits() -> None:
    def types(entries: int, rows: int, stop: int) -> list[str]:
        return [dtype.str for _, dtype in array_forms(entries, rows, rows - 1, stop).values()]

    most = 2**31 - 1
    assert types(most, 10, most) == ["<i4", "<i4", "<u4"]
    assert types(most + 1, 10, most) == ["<i4", "<i8", "<u4"]
    assert types(most, 10, most + 1) == ["<i8", "<i4", "<u4"]
    # GPT-NeoX goes over to 64 bits at 2^32 - 2 samples.
    assert types(10, 2**32 - 2, 10) == ["<i4", "<i8", "<u4"]
    assert types(10, 2**32 - 1, 10) == ["<i4", "<i8", "<i8"]


def test_the_seed_of_an_epoch_is_for_ever() -> None:
    """The first four bytes, little-endian, of the SHA-256 of ``seed/epoch``."""
    # echo -n 1234/0 | sha256sum: 96d6213d…
    assert epoch_seed(1234, 0) == 0x3D21D696
    assert epoch_seed(1234, 1) != epoch_seed(1235, 0)
