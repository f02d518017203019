"""``train_epochs``: as many steps as the data has, and not one epoch more than asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_files import data_args, letters, write_documents

from megatron.data.index_maps import Order, epochs_needed, samples_of_epochs
from megatron.data.run_length import run_length
from megatron.errors import DataError
from megatron.runtime.world import World


@pytest.mark.parametrize(
    ("epochs", "order", "samples"),
    [
        (1, "neox", 12),  # 99 tokens have a next one: 12 × 8 = 96
        (2, "neox", 24),  # 199 // 8
        (2.5, "neox", 31),  # 249 // 8
        (0.5, "neox", 6),  # 49 // 8
        (0.29, "neox", 3),  # 29 tokens, though 0.29 × 100 is 28.999… in floats
        (1, "epochs", 12),
        (2, "epochs", 24),
        (2.5, "epochs", 30),
    ],
)
def test_samples_by_hand(epochs: float, order: Order, samples: int) -> None:
    assert samples_of_epochs(100, 8, epochs, order) == samples


@given(
    tokens=st.integers(10, 5000),
    seq_length=st.integers(1, 9),
    epochs=st.integers(1, 9),
    order=st.sampled_from(["neox", "epochs"]),
)
def test_whole_epochs_need_no_further_one(
    tokens: int, seq_length: int, epochs: int, order: Order
) -> None:
    samples = samples_of_epochs(tokens, seq_length, epochs, order)
    assert epochs_needed(tokens, seq_length, samples, order) == epochs
    assert epochs_needed(tokens, seq_length, samples + 1, order) == epochs + 1


def test_steps_are_whole_and_the_arithmetic_is_said(tmp_path: Path) -> None:
    settings = data_args(write_documents(tmp_path / "d", letters(20)), split="50,50,0")
    length = run_length(
        settings, epochs=1.5, seq_length=8, seed=1, global_batch_size=6, world=World()
    )
    assert length.steps == 3
    assert length.explain() == (
        "train_epochs: 1.5 × 110 tokens = 20 samples; // 6 samples a step = 3 steps; "
        "2 samples are left over"
    )
    with pytest.raises(DataError, match=r"// 64 samples a step = 0 steps.*: not one step"):
        run_length(settings, epochs=1, seq_length=8, seed=1, global_batch_size=64, world=World())
