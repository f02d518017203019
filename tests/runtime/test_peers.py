"""Protects the end of a run in which one rank is gone: the others end within seconds, and say why."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from megatron.errors import DataError
from megatron.runtime import peers
from megatron.runtime.peer_cause import broken
from megatron.runtime.peer_hub import Hub
from megatron.runtime.peers import watch_peers
from megatron.runtime.world import World
from tests.support.ranks import run_outcomes, run_ranks

# Seconds, far below the half hour of a collective.
SOON = 40.0


def work(world: World, how: str, culprit: int, folder: Path) -> str:
    # Each rank is a node of its own, so that each says what it has been told.
    log = os.open(folder / str(world.rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    world = replace(world, hostname=f"node{world.rank}")
    with watch_peers(world):
        if world.rank == culprit:
            if how == "raises":
                raise DataError("the file is gone\n  to do: bring it back")
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises":
            time.sleep(600.0)  # what does not notice anything by itself
        world.barrier()
    return "done"


def nodes(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("how", "culprit", "words"),
    [
        ("raises", 2, "the file is gone\n  to do: bring it back"),
        ("is killed", 2, "ended without a word: killed?"),
        ("is killed", 0, "ended without a word: killed?"),
    ],
)
def test_all_end_and_say_why(how: str, culprit: int, words: str, tmp_path: Path) -> None:
    outcomes = run_outcomes(3, work, how, culprit, tmp_path, env_of_rank=nodes, timeout=SOON)
    assert [o.exit_code for o in outcomes] == [
        (1 if how == "raises" else -9) if rank == culprit else 1 for rank in range(3)
    ]
    for rank in {0, 1, 2} - {culprit}:
        said = (tmp_path / str(rank)).read_text()
        assert said.startswith(f"this run ends: rank {culprit} on node{culprit}: {words}")


def leaves_late(world: World, late: int) -> str:
    with watch_peers(world):
        if world.rank == late:
            time.sleep(2 * peers._GRACE_S if late == 0 else 1.0)
    return "done"


@pytest.mark.ranks
@pytest.mark.parametrize("late", [0, 1])
def test_ranks_that_end_well_do_so_in_any_order(late: int) -> None:
    assert run_ranks(2, leaves_late, late) == ["done", "done"]


def test_a_stranger_is_dropped_and_ends_nothing() -> None:
    causes = []
    hub = Hub(2, "secret", causes.append)
    for line in (
        b'{"token": "guess", "rank": 1}\n',
        b"GET / HTTP/1.0\r\n\r\n",
        b"[1]\n",
        b'{"rank": 1}\n',
    ):
        with socket.create_connection(("127.0.0.1", hub.port), timeout=10.0) as stranger:
            stranger.sendall(line)
            assert stranger.recv(1) == b""
    hub.leave()
    assert causes == []


def test_a_lost_host_is_not_called_killed() -> None:
    assert "no answer for 30 s" in broken(3, "node2", TimeoutError(110, "timed out")).text()
    assert "killed?" in broken(3, "node2", None).text()


def test_one_rank_needs_no_watch() -> None:
    with watch_peers(World()):
        pass
