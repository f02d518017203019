"""Split boundaries and sample counts, by the numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.data.splits import (
    SPLIT_NAMES,
    SampleCounts,
    is_left_out,
    samples_wanted,
    split_boundaries,
)
from megatron.errors import DataError


@pytest.mark.parametrize(
    ("split", "documents", "boundaries"),
    [
        ("9998,0.002,0.002", 20, [0, 20, 20, 20]),
        ("969,30,1", 20, [0, 19, 20, 20]),
        ("1000,0,0", 20, [0, 20, 20, 20]),
        ("969, 30, 1", 1000, [0, 969, 999, 1000]),
        ("969/30/1", 1000, [0, 969, 999, 1000]),
        ("1", 7, [0, 7, 7, 7]),
        ("90,10", 10, [0, 9, 10, 10]),
        ("1,1,1", 1, [0, 1, 1, 1]),  # three times 0, the one that is missing moves all ends
        ("1,1,0", 3, [0, 1, 3, 3]),  # 1.5 is rounded to 2 twice, one too much
        ("1,1,2", 2, [0, 1, 1, 2]),  # 0.5 is rounded to the even 0
        ("0,0,1", 5, [0, 0, 0, 5]),
        ("0.99,0.01,0", 0, [0, 0, 0, 0]),
    ],
)
def test_boundaries(split: str, documents: int, boundaries: list[int]) -> None:
    assert split_boundaries(split, documents) == boundaries


@given(
    st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any),
    st.integers(0, 10_000),
)
def test_boundaries_rise_from_none_to_all(shares: list[int], documents: int) -> None:
    boundaries = split_boundaries(",".join(map(str, shares)), documents)
    assert boundaries[0] == 0
    assert boundaries[-1] == documents
    assert boundaries == sorted(boundaries)


@pytest.mark.parametrize("split", ["", "a,b", "0,0,0", "1,-1,1", "nan,1,1", "1,2,3,4", "1,,1"])
def test_nonsense_is_refused(split: str) -> None:
    with pytest.raises(DataError, match="split"):
        split_boundaries(split, 10)


def test_samples_wanted() -> None:
    assert samples_wanted(100, 40, 3, 8) == SampleCounts(train=800, valid=72, test=24)
    assert samples_wanted(3, 1000, 0, 2) == SampleCounts(train=6, valid=0, test=0)
    assert list(samples_wanted(80, 40, 1, 1)) == [80, 3, 1]


@pytest.mark.parametrize(
    ("split", "left_out"),
    [
        ("90,10,0", ["test"]),
        ("90,0,10", ["valid"]),
        ("90,10", ["test"]),
        ("1,0,0", []),
        ("1", []),
        ("8,1,1", []),
    ],
)
def test_a_held_out_split_that_nobody_asks_for(split: str, left_out: list[str]) -> None:
    assert [name for name in SPLIT_NAMES if is_left_out(split, name)] == left_out
