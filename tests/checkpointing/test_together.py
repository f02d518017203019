"""Errors that every rank shares, and durable files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from megatron.checkpointing.together import describe, together
from megatron.errors import CheckpointError, DataError
from megatron.runtime.world import World


class RankOneOfThree(World):
    """Its peers answer with given errors, or with success where the error is None."""

    peers: tuple[OSError | None, OSError | None]

    def all_gather(self, value: Any) -> list[Any]:
        def report(error: OSError | None) -> Any:
            problem = None if error is None else describe(error)
            return replace(value, value="peer", problem=problem, hostname="beta")

        return [report(self.peers[0]), value, report(self.peers[1])]


def rank_one(*peers: OSError | None) -> World:
    world = RankOneOfThree(rank=1, size=3, hostname="alpha")
    object.__setattr__(world, "peers", peers)
    return world


def fail_with(error: Exception) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


FULL = OSError(errno.ENOSPC, "No space left on device", "/x/y.pt")


def test_values_come_in_rank_order() -> None:
    assert together(World(), lambda: 5) == [5]
    assert together(World(), None) == [None]
    assert together(rank_one(None, None), lambda: 5) == ["peer", 5, "peer"]


@pytest.mark.parametrize(
    ("peers", "action", "text"),
    [
        ((None, FULL), lambda: 5, "rank 2 on beta: No space left on device: /x/y.pt"),
        ((None, None), fail_with(FULL), "rank 1 on alpha: No space left on device: /x/y.pt"),
        (
            (FULL, None),
            fail_with(FULL),
            "rank 0 on beta: No space left on device: /x/y.pt (rank 1 too)",
        ),
        (
            (FULL, FULL),
            fail_with(DataError("x")),
            "rank 0 on beta: No space left on device: /x/y.pt (ranks 1, 2 failed too)",
        ),
        ((None, None), fail_with(DataError("one\n two")), "rank 1 on alpha: one\n two"),
    ],
)
def test_the_first_failing_rank_speaks_for_all(
    peers: tuple[OSError | None, OSError | None], action: Callable[[], Any], text: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        together(rank_one(*peers), action)
    assert str(caught.value) == text
    assert caught.value.everywhere


def test_a_fault_passes_and_an_expected_error_does_not() -> None:
    with pytest.raises(ZeroDivisionError):
        together(World(), lambda: 1 // 0)
    with pytest.raises(CheckpointError, match="ZeroDivisionError: integer"):
        together(World(), lambda: 1 // 0, expected=(ZeroDivisionError,))
