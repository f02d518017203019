"""Protects the promise that a layout of ranks changes how a model is computed, not which model it is.

For the same seed, data and global batch: 20 steps (in the sample 10) with clipping and weight decay,
fp32. Losses and norms of the gradients agree with one process to 1e-5 under AdamW; final weights to 1e-5
of the largest under SGD (under Adam, parameters whose true gradient is zero turn rounding into full
steps).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from megatron.runtime.world import World
from tests.parallel.combinations import (
    CASES,
    HALF,
    LAYOUTS,
    OPTION_CASES,
    PAIRS,
    PIPE_LAYOUTS,
    SAMPLE,
    Case,
    meetings,
)
from tests.parallel.deviations import (
    TITLE,
    Deviation,
    Pair,
    alone,
    deviations,
    in_one_world,
    in_worlds,
    table,
)
from tests.parallel.layouts import CLIPPING, STEPS, Layout, Trained, Variant, train
from tests.support.ranks import run_ranks

LIMIT = 1e-5
# As many as a part of the table takes a minute or two for.
ROWS = {1: 100, 2: 40, 4: 20, 8: 10}


def parts(cases: list[Case]) -> dict[str, list[Case]]:
    """The cases of each size of a world, cut into parts of the table that are printed when done."""
    found = {}
    for ranks, rows in ROWS.items():
        of_size = [case for case in cases if case[0].ranks == ranks]
        for first in range(0, len(of_size), rows):
            found[f"{ranks} ranks, part {first // rows + 1}"] = of_size[first : first + rows]
    return found


PARTS = parts(CASES)


def require_agreement(found: dict[Case, Deviation]) -> None:
    beyond = {case: off for case, off in found.items() if not off.largest <= LIMIT}
    assert not beyond, f"{len(beyond)} of {len(found)} cases\n{TITLE}\n{table(beyond)}"


@pytest.mark.ranks
def test_a_sample_of_layouts_agrees_with_one_process() -> None:
    steps = STEPS // 2
    require_agreement(deviations(SAMPLE, alone(SAMPLE, steps), steps))


@pytest.mark.ranks
def test_there_is_something_to_agree_on() -> None:
    """The model learns, clips in some steps and not in others, and its variants differ."""
    cases = [(Layout(), Variant()), (Layout(), Variant(2, untied=False, parallel=True))]
    (found,) = run_ranks(1, in_one_world, cases)
    for adam, sgd in found:
        assert len(adam.losses) == STEPS
        assert adam.losses[-1] < 0.9 * adam.losses[0]
        assert sgd.losses[-1] < 0.9 * sgd.losses[0]
        assert min(adam.norms) < CLIPPING < max(adam.norms)
    assert abs(found[0][0].losses[0] - found[1][0].losses[0]) > 1e-3


def test_any_two_values_that_can_meet_do() -> None:
    possible = set[tuple[str, object, str, object]]().union(*map(meetings, LAYOUTS + PIPE_LAYOUTS))
    assert set(PAIRS) <= set(LAYOUTS + PIPE_LAYOUTS)
    assert set().union(*map(meetings, PAIRS)) == possible


def test_every_case_is_in_one_part_of_the_table() -> None:
    assert sorted(map(str, CASES)) == sorted(str(case) for part in PARTS.values() for case in part)


@pytest.fixture(scope="module")
def by_one() -> dict[Case, Pair]:
    """Every variant in the table, trained by one process."""
    return alone(CASES)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("part", PARTS)
def test_every_layout_and_variant_agrees_with_one_process(
    part: str, by_one: dict[Case, Pair], say: Callable[[str], None]
) -> None:
    found = deviations(PARTS[part], by_one)
    say(f"{part}\n{TITLE}\n{table(found)}")
    require_agreement(found)


@pytest.mark.slow
@pytest.mark.ranks
def test_every_option_agrees_with_one_process(say: Callable[[str], None]) -> None:
    found = deviations(OPTION_CASES, alone(OPTION_CASES))
    say(f"{TITLE}\n{table(found)}")
    require_agreement(found)


def in_half_precision(
    world: World, cases: list[tuple[Layout, str]]
) -> dict[tuple[Layout, str], Trained]:
    return {
        (place, kind): train(world, place, Variant(1), "Adam", precision=kind)
        for place, kind in cases
    }


@pytest.mark.slow
@pytest.mark.ranks
def test_half_precision_agrees_to_its_own_rounding_and_keeps_copies_equal() -> None:
    # bf16 keeps 8 bits of a number and fp16 11, so that fp16 is held to less.
    limits = {"bfloat16": (2e-3, 1e-2), "fp16": (5e-4, 2.5e-3)}
    worlds = [
        [(place, kind) for place in (Layout(zero=1), *HALF) if place.ranks == ranks]
        for ranks in (4, 2, 1)
        for kind in limits
    ]
    found: dict[tuple[Layout, str], Trained] = {}
    for results in in_worlds(in_half_precision, worlds, timeout=600.0):
        found |= results
    for (place, kind), got in found.items():
        expected = found[Layout(zero=1), kind]
        loss, norm = limits[kind]
        assert got.losses == pytest.approx(expected.losses, rel=loss), (kind, place)
        assert got.norms == pytest.approx(expected.norms, rel=norm), (kind, place)
