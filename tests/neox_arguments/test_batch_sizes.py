"""The batch equation, case by case and by property."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.errors import ConfigError
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.batch_sizes import BatchMismatch, solve_batch
from megatron.neox_arguments.sections import BatchArgs
from tests.support.small_config import small


def configured(world_size: int, **changes: Any) -> NeoXArgs:
    batch = {"train_micro_batch_size_per_gpu": ...} | changes
    return NeoXArgs.from_dict(small(**batch), world_size=world_size)


# Case 9.


def test_a_contradiction_shows_the_equation() -> None:
    with pytest.raises(ConfigError) as error:
        configured(
            1, train_batch_size=30, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=8
        )
    assert str(error.value) == (
        "train_batch_size: 30 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 8 x "
        "data-parallel ranks 1 = 32: change one, or leave one out and it is computed"
    )


def test_what_does_not_divide() -> None:
    with pytest.raises(ConfigError) as error:
        configured(1, train_batch_size=10, train_micro_batch_size_per_gpu=4)
    assert str(error.value) == (
        "train_batch_size: 10 / (train_micro_batch_size_per_gpu 4 x data-parallel ranks 1) = 2.5 is no "
        "whole number of gradient_accumulation_steps: use a multiple of 4, or another number of ranks"
    )


def test_a_world_that_is_known_later_only() -> None:
    args = NeoXArgs.from_dict(small(model_parallel_size=2))
    with pytest.raises(
        ConfigError, match=r"^model_parallel_size: the layout needs a multiple of 2"
    ) as e:
        args.batch_sizes(3)
    assert e.value.everywhere


def test_two_give_the_third() -> None:
    args = configured(1, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=8)
    assert args.batch_sizes(1) == BatchSizes(32, 4, 8, 1)
    args = configured(1, train_batch_size=32, gradient_accumulation_steps=8)
    assert args.batch_sizes(1) == BatchSizes(32, 4, 8, 1)
    assert args.batch_sizes(2) == BatchSizes(32, 2, 8, 2)
    assert configured(4, train_batch_size=32).batch_sizes(4) == BatchSizes(32, 8, 1, 4)
    assert args.batch_sizes(1).explain() == (
        "32 samples per step (train_batch_size) = 4 (train_micro_batch_size_per_gpu) x "
        "8 (gradient_accumulation_steps) x 1 (data-parallel ranks)"
    )


def test_too_few_ranks_for_the_layout() -> None:
    with pytest.raises(ConfigError) as error:
        configured(4, train_batch_size=4, pipe_parallel_size=4, model_parallel_size=2)
    assert (
        "pipe_parallel_size: the layout needs 8 GPUs (or CPU processes), 4 exist: "
        "pipe_parallel_size 4 x model_parallel_size 2 = 8. Start 8, or a multiple (--num_gpus 8 in front"
    ) in str(error.value)
    with pytest.raises(
        ConfigError, match=r"model_parallel_size: the layout needs 2 GPUs .*: model_"
    ):
        configured(1, train_batch_size=4, model_parallel_size=2)


def test_ranks_that_share_sequences_read_the_same_samples() -> None:
    layout = {"context_parallel_size": 2, "model_parallel_size": 2}
    args = configured(8, train_batch_size=8, **layout)
    assert args.batch_sizes(8) == BatchSizes(8, 4, 1, 2)
    with pytest.raises(ConfigError, match="context_parallel_size 2 x model_parallel_size 2 = 4"):
        configured(6, train_batch_size=8, **layout)


def test_nothing_is_given() -> None:
    with pytest.raises(ConfigError, match="train_micro_batch_size_per_gpu: missing: give"):
        configured(1)


@given(
    micro=st.integers(1, 64),
    steps=st.integers(1, 64),
    ranks=st.integers(1, 64),
    leave_out=st.integers(0, 3),
)
def test_any_consistent_triple_is_found_again(
    micro: int, steps: int, ranks: int, leave_out: int
) -> None:
    whole = BatchSizes(micro * steps * ranks, micro, steps, ranks)
    given_values = [whole.global_batch_size, micro, steps]
    if leave_out < 3:
        given_values[leave_out] = None  # type: ignore[call-overload]
    assert solve_batch(BatchArgs(*given_values), ranks) == whole


@given(st.lists(st.none() | st.integers(1, 40), min_size=3, max_size=3), st.integers(1, 8))
def test_a_solution_holds_what_was_given_or_there_is_none(
    values: list[int | None], ranks: int
) -> None:
    try:
        sizes = solve_batch(BatchArgs(*values), ranks)
    except BatchMismatch:
        total, micro, steps = values
        divisor = (micro or 1) * (steps or 1) * ranks
        assert (
            (total or divisor) % divisor or None not in values or (total is None and micro is None)
        )
        return
    found = (sizes.global_batch_size, sizes.micro_batch_size, sizes.gradient_accumulation_steps)
    assert found[0] == found[1] * found[2] * ranks
    assert all(value in (None, result) for value, result in zip(values, found, strict=True))
    assert all(type(result) is int for result in found)
