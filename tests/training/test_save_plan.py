"""Protects after which steps a checkpoint is written."""

from megatron.training.save_plan import is_save_step


def saves(until: int, **settings: object) -> list[int]:
    return [k for k in range(1, until + 1) if is_save_step(k, **settings)]


def test_linear() -> None:
    assert saves(10, factor=3, scale="linear") == [3, 6, 9]


def test_log_powers_rounded_down() -> None:
    assert saves(70, factor=2, scale="log") == [1, 2, 4, 8, 16, 32, 64]
    assert saves(12, factor=1.5, scale="log") == [1, 2, 3, 5, 7, 11]


def test_extra_steps_and_no_factor() -> None:
    assert saves(10, factor=None, scale="linear", extra=[2, 7]) == [2, 7]
    assert saves(6, factor=3, scale="linear", extra=(1,)) == [1, 3, 6]
