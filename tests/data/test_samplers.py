"""The global sample counter: the order never depends on ranks, accumulation or restarts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatron.data.samplers import evaluation_first_sample, step_samples

SIZES = st.integers(1, 5)


def batch(micro: int, accumulation: int, ranks: int) -> SimpleNamespace:
    return SimpleNamespace(
        global_batch_size=micro * accumulation * ranks,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        data_parallel_size=ranks,
    )


def test_by_the_numbers() -> None:
    sizes = batch(micro=2, accumulation=3, ranks=2)
    assert step_samples(100, sizes, 0).tolist() == [[100, 101], [104, 105], [108, 109]]
    assert step_samples(100, sizes, 1).tolist() == [[102, 103], [106, 107], [110, 111]]


@given(SIZES, SIZES, SIZES, st.integers(0, 2**40))
def test_a_step_reads_its_samples_once_and_in_order(
    micro: int, accumulation: int, ranks: int, consumed: int
) -> None:
    sizes = batch(micro, accumulation, ranks)
    read = np.stack([step_samples(consumed, sizes, rank) for rank in range(ranks)], axis=1)
    assert read.shape == (accumulation, ranks, micro)
    total = sizes.global_batch_size
    assert read.reshape(-1).tolist() == list(range(consumed, consumed + total))


def test_evaluations_follow_each_other() -> None:
    firsts = [evaluation_first_sample(step, 10, 3, 4, same=False) for step in (0, 9, 10, 25, 30)]
    assert firsts == [0, 0, 12, 24, 36]
    assert evaluation_first_sample(30, 10, 3, 4, same=True) == 0
