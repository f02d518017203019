"""Protects the learning-rate formulas: values computed by hand, ends exact, nothing stored."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.neox_arguments.sections import LRScheduleArgs
from megatron.optimizers import LRSchedule


def schedule(style: str = "cosine", warmup: float = 0.1, length: int = 100) -> LRSchedule:
    return LRSchedule(lr=1.0, min_lr=0.1, length=length, warmup=warmup, style=style)


def test_warmup_starts_at_one_step_not_at_zero_and_reaches_lr() -> None:
    s = schedule()
    assert [s.at(k) for k in (0, 1, 2, 5, 10)] == [0.1, 0.1, 0.2, 0.5, 1.0]


@pytest.mark.parametrize(
    ("style", "quarter", "end"),
    [
        ("constant", 1.0, 1.0),
        ("linear", 0.1 + 0.9 * 0.75, 0.1),
        ("cosine", 0.1 + 0.45 * (1 + math.cos(math.pi / 4)), 0.1),
        ("exponential", math.exp(-0.693 / 4), math.exp(-0.693)),
    ],
)
def test_decay(style: str, quarter: float, end: float) -> None:
    s = schedule(style, warmup=0.2)  # warm-up 20 steps, decay 80
    assert s.at(40) == pytest.approx(quarter, rel=1e-12)
    assert s.at(100) == pytest.approx(end, rel=1e-12)
    assert s.at(101) == s.at(100_000) == s.at(100)


def test_fractional_warmup_is_not_rounded() -> None:
    s = schedule("linear", warmup=0.01, length=150)  # w = 1.5
    assert s.at(1) == 1 / 1.5
    assert s.at(2) == pytest.approx(0.1 + 0.9 * (1 - 0.5 / 148.5))


def test_min_lr_is_a_floor_of_the_decay_only() -> None:
    assert schedule("exponential", warmup=0.0).at(100) == pytest.approx(0.5, abs=1e-3)
    low = LRSchedule(lr=1.0, min_lr=0.9, length=10, warmup=0.5, style="exponential")
    assert low.at(0) == 0.2
    assert low.at(10) == 0.9


def test_no_warmup_and_warmup_as_long_as_the_run() -> None:
    assert schedule(warmup=0.0).at(0) == 1.0
    whole = schedule("linear", warmup=1.0)
    assert whole.at(100) == 1.0
    assert whole.at(101) == 0.1


@pytest.mark.parametrize(
    ("iters", "decay_iters", "fraction", "length"),
    [
        (1000, 50, 0.5, 50),
        (1000, None, 0.5, 500),
        (11, None, 0.8, 8),
        (1000, None, None, 1000),
        (0, None, None, 1),
        (1000, None, 0.0, 1),
    ],
)
def test_length(iters: int, decay_iters: int | None, fraction: float | None, length: int) -> None:
    schedule = LRScheduleArgs(lr_decay_iters=decay_iters, lr_decay_fraction=fraction)
    assert schedule.decay_steps(iters) == length


@given(
    style=st.sampled_from(["constant", "linear", "cosine", "exponential"]),
    warmup=st.just(0.0) | st.floats(1e-6, 1.0),
    length=st.integers(1, 10_000),
    step=st.integers(0, 20_000),
)
def test_never_above_lr_and_after_warmup_never_below_min(
    style: str, warmup: float, length: int, step: int
) -> None:
    s = LRSchedule(lr=3e-4, min_lr=3e-5, length=length, warmup=warmup, style=style)
    assert 0.0 < s.at(step) <= 3e-4
    if step > warmup * length:
        assert s.at(step) >= 3e-5
        assert s.at(step + 1) <= s.at(step)
