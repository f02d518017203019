"""Protects the tests' own harness: a world that never ends says where it was."""

from __future__ import annotations

import time

import pytest

from megatron.runtime.world import World
from tests.support.ranks import run_outcomes


def one_oversleeps(world: World) -> int:
    if world.rank == 1:
        time.sleep(600.0)
    return world.rank


@pytest.mark.ranks
def test_a_rank_that_does_not_end_says_where_it_was() -> None:
    first, second = run_outcomes(2, one_oversleeps, timeout=8.0)
    assert (first.value, second.value) == (0, None)
    assert second.exit_code == -9
    assert second.error is not None
    assert second.error.startswith("not ended after 8 s\n")
    assert "in one_oversleeps" in second.error
