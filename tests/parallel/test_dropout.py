"""Protects dropout on every layout of ranks, in steps that teach nothing (learning rate 0).

The statistics of losses and of norms are those of one rank. Behind them: whoever computes the same drops
the same, whoever has a part of its own (heads, tokens, layers) draws numbers of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from megatron.model import transformer
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.pipeline_step import step_of
from megatron.training.setup import build_engine, build_model, build_parts
from megatron.training.step import StepResult, StepSettings
from tests.parallel.layouts import Layout, Variant, batch_of, config_of
from tests.support.ranks import run_ranks

STEPS = 96
DROPOUT = {"hidden_dropout": 0.2, "attention_dropout": 0.2}
PLACES = [
    Layout(2, sequence=False, zero=1),
    Layout(2, sequence=True, zero=1),
    Layout(2, sequence=True, zero=0),
    Layout(zero=1, context=2),
    Layout(zero=2, data=2),
    Layout(zero=3, data=2),
    Layout(zero=0, pipe=2),
]
# A draw of random numbers: what for, and what the generator's state was.
Draws = list[tuple[str, str]]


def train(world: World, place: Layout, steps: int) -> list[StepResult]:
    """One model on one batch, under as many dropouts as steps: nothing is learned."""
    config = config_of(place, Variant(2, parallel=True), "SGD") | DROPOUT
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    engine.train()
    settings = StepSettings(
        parts.device, parts.groups, seed=1, has_dropout=True, zero_stage=args.optim.zero_stage
    )
    batch, do = batch_of(0, parts), step_of(engine)
    return [do(engine, batch, settings, step=step, learning_rate=0.0) for step in range(steps)]


def statistics(world: World, places: list[Layout]) -> dict[Layout, list[tuple[float, float]]]:
    return {
        place: [(found.loss, found.grad_norm) for found in train(world, place, STEPS)]
        for place in places
    }


@contextmanager
def recorded() -> Iterator[Draws]:
    """Every dropout of hidden states and of attention meanwhile, in their order."""
    draws: Draws = []

    def noting(what: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            state = torch.get_rng_state().numpy().tobytes()
            draws.append((what, hashlib.sha256(state).hexdigest()))
            return function(*args, **options)

        return call

    hidden = noting("hidden", torch.nn.functional.dropout)
    attention = noting("attention", transformer.attend_causally)
    with (
        mock.patch.object(torch.nn.functional, "dropout", hidden),
        mock.patch.object(transformer, "attend_causally", attention),
    ):
        yield draws


def draws_of(world: World, places: list[Layout]) -> dict[Layout, Draws]:
    found = {}
    for place in places:
        with recorded() as draws:
            train(world, place, steps=2)
        found[place] = draws
    return found


@pytest.mark.ranks
def test_ranks_draw_alike_what_they_share_and_apart_what_they_do_not() -> None:
    first, second = run_ranks(2, draws_of, PLACES)
    for place in PLACES:
        for what in ("hidden", "attention"):
            here, there = (
                [state for kind, state in rank[place] if kind == what] for rank in (first, second)
            )
            # No two layers, micro-batches or steps draw the same either.
            assert len(set(here)) == len(here) > 0, (place, what)
            assert len(set(there)) == len(there) > 0, (place, what)
            if what == "hidden" and place.model == 2 and not place.sequence:
                assert here == there, (place, what)
            else:
                assert not set(here) & set(there), (place, what)


@pytest.mark.slow
@pytest.mark.ranks
def test_losses_and_norms_have_the_statistics_of_one_rank() -> None:
    (alone,) = run_ranks(1, statistics, [Layout()])
    one = np.array(alone[Layout()])
    found, other = run_ranks(2, statistics, PLACES)
    assert found == other  # the ranks agree on each loss
    for place, numbers in found.items():
        got = np.array(numbers)
        assert len(set(got[:, 0])) == STEPS, place
        assert not np.array_equal(got, one), place
        error = np.sqrt((one.var(axis=0, ddof=1) + got.var(axis=0, ddof=1)) / STEPS)
        assert (abs(got.mean(axis=0) - one.mean(axis=0)) < 4 * error).all(), place
        spread = got.std(axis=0, ddof=1) / one.std(axis=0, ddof=1)
        assert ((spread > 0.65) & (spread < 1.55)).all(), (place, spread)
