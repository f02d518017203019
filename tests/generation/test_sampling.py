"""Choosing the next token, on literal numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megatron.generation.sampling import draw, keep_top_k, keep_top_p, next_tokens

INF = torch.inf


def log(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def uniform(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def kept(logits: Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, [[1]]), (2, [[1, 3]]), (3, [[0, 1, 3]]), (0, [[0, 1, 2, 3]]), (9, [[0, 1, 2, 3]])],
)
def test_top_k(k: int, expected: list[list[int]]) -> None:
    assert kept(keep_top_k(torch.tensor([[1.0, 4.0, -2.0, 3.0]]), k)) == expected


def test_top_k_works_on_each_row_and_leaves_values_alone() -> None:
    got = keep_top_k(torch.tensor([[1.0, 2.0, 3.0], [9.0, 8.0, 7.0]]), 2)
    assert got.tolist() == [[-INF, 2.0, 3.0], [9.0, 8.0, -INF]]


def test_top_k_never_brings_a_forbidden_token_back() -> None:
    assert kept(keep_top_k(torch.tensor([[-INF, 2.0, -INF, 1.0]]), 3)) == [[1, 3]]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.3, [[2]]),
        (0.49, [[2]]),
        (0.51, [[2, 0]]),
        (0.74, [[2, 0]]),
        (0.76, [[2, 0, 3]]),
        (0.999, [[2, 0, 3, 1]]),
        (1.0, [[2, 0, 3, 1]]),
        (0.0, [[2, 0, 3, 1]]),
    ],
)
def test_top_p(p: float, expected: list[list[int]]) -> None:
    logits = log(0.25, 0.0625, 0.5, 0.1875)
    assert kept(keep_top_p(logits, p)) == [sorted(expected[0])]


def test_top_p_takes_equals_by_ascending_id() -> None:
    assert kept(keep_top_p(torch.zeros(1, 8), 0.25)) == [[0, 1]]


def test_draw_inverts_the_distribution() -> None:
    logits = log(0.25, 0.0, 0.5, 0.25).expand(6, 4)
    numbers = uniform(0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 2**-53)
    assert draw(logits, numbers).tolist() == [0, 0, 2, 2, 3, 3]


def test_draw_never_gives_what_has_no_probability() -> None:
    # At both ends and in the middle, with the extreme numbers of the generator.
    logits = torch.tensor([[-INF, 0.0, -INF, 0.0, -INF]]).expand(4, 5)
    assert draw(logits, uniform(0.0, 0.5, 0.5 - 2**-40, 1 - 2**-53)).tolist() == [1, 3, 1, 3]


def test_draws_have_the_right_frequencies() -> None:
    probabilities = (0.1, 0.2, 0.3, 0.4)
    count = 20_000
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = draw(log(*probabilities).expand(count, 4), numbers).bincount(minlength=4) / count
    for share, p in zip(got.tolist(), probabilities, strict=True):
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / count))


def test_temperature_zero_is_greedy_whatever_else_is_set() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    got = next_tokens(logits, uniform(0.9, 0.9), temperature=0.0, top_k=3, top_p=0.9)
    assert got.tolist() == [1, 0]


def test_temperature_divides_the_logits() -> None:
    # exp(log 4 / 2) = 2: one third and two thirds.
    logits = torch.tensor([[0.0, math.log(4.0)]]).expand(2, 2)
    got = next_tokens(logits, uniform(0.33, 0.34), temperature=2.0, top_k=0, top_p=0.0)
    assert got.tolist() == [0, 1]


def test_top_k_comes_before_top_p() -> None:
    # Of [.4, .3, .2, .1] top-k 2 leaves [4/7, 3/7]; a nucleus of 0.55 of that is the first alone,
    # of the whole it would be the first two.
    logits = log(0.4, 0.3, 0.2, 0.1)
    got = next_tokens(logits, uniform(0.99), temperature=1.0, top_k=2, top_p=0.55)
    assert got.tolist() == [0]
    got = next_tokens(logits, uniform(0.99), temperature=1.0, top_k=0, top_p=0.55)
    assert got.tolist() == [1]
