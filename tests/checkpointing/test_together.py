"""Errors that every rank shares, and durable files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from megatron.checkpointing.together import describe, together
from megatron.errors import CheckpointError, DataError
from megatron.runtime.durable import new_file, replace_file, sync_folder
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


def test_replacing_a_file_shows_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    replace_file(path, b"old")
    with mock.patch("os.replace", side_effect=OSError(errno.EIO, "broken")), pytest.raises(OSError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["latest"]


def test_a_full_disk_error_names_its_file() -> None:
    with pytest.raises(OSError) as caught, new_file(Path("/dev/full")) as file:
        file.write(b"x")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


@pytest.mark.parametrize(("number", "raised"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_folders_that_cannot_be_flushed(tmp_path: Path, number: int, raised: bool) -> None:
    with mock.patch("os.fsync", side_effect=OSError(number, "no")):
        if raised:
            with pytest.raises(OSError, match="no"):
                sync_folder(tmp_path)
        else:
            sync_folder(tmp_path)
