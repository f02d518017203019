"""Protects that randomness depends on the place in the run alone."""

import torch

from megatron.runtime.seeds import derive_seed, seed_dropout


def draw(**place: int) -> torch.Tensor:
    seed_dropout(1234, **{"step": 5, "micro_batch": 0, "data_rank": 0} | place)
    return torch.rand(4)


def test_same_place_same_numbers_whatever_was_drawn_before() -> None:
    first = draw()
    torch.rand(100)
    assert torch.equal(draw(), first)


def test_every_part_of_the_place_matters() -> None:
    places = [
        {},
        {"step": 6},
        {"micro_batch": 1},
        {"data_rank": 1},
        {"pipe_rank": 1},
        {"context_rank": 1},
    ]
    assert len({tuple(draw(**place).tolist()) for place in places}) == len(places)


def test_seed_is_63_bits_and_stable() -> None:
    assert 0 <= derive_seed(1234, "x") < 2**63
    assert derive_seed(1, "ab", "c") != derive_seed(1, "a", "bc")
    # A literal: a changed hash would silently change every run's dropout.
    assert derive_seed(1234, "dropout", 0, 0, 0, 0, 0) == SEED_OF_THE_FIRST_STEP


SEED_OF_THE_FIRST_STEP = 9026947243639617274
