"""Protects the end of a run in which one rank is gone: the others end within seconds, and say why."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from megatron.errors import DataError
from megatron.runtime import peers
from megatron.runtime.peer_cause import broken
from megatron.runtime.peer_hub import Hub
from megatron.runtime.peer_link import Link, connect, is_loopback, own_addresses
from megatron.runtime.peers import watch_peers
from megatron.runtime.world import World
from tests.support.ranks import Outcome, run_outcomes, run_ranks

# Seconds, far below the half hour of a collective.
SOON = 40.0
# Seconds from the news to the end, in these tests: nobody has to be waited for.
GRACE = 0.4


def work(world: World, how: str, culprit: int, folder: Path) -> str:
    # Each rank is a node of its own, so that each says what it has been told.
    log = os.open(folder / str(world.rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    world = replace(world, hostname=f"node{world.rank}")
    with mock.patch.object(peers, "_GRACE_S", GRACE), watch_peers(world):
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


CASES = {
    ("raises", 2): "the file is gone\n  to do: bring it back",
    ("is killed", 2): "ended without a word: killed?",
    ("is killed", 0): "ended without a word: killed?",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[Outcome]]:
    """How the three ranks of each case ended. They run beside each other: most of it is waiting."""
    folder = tmp_path_factory.mktemp("peers")

    def run(case: tuple[str, int]) -> list[Outcome]:
        place = folder / f"{case[0]}-{case[1]}"
        place.mkdir()
        ended = run_outcomes(3, work, *case, place, env_of_rank=nodes, timeout=SOON)
        for outcome in ended:
            outcome.value = (place / str(outcome.rank)).read_text()
        return ended

    with ThreadPoolExecutor() as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.ranks
@pytest.mark.parametrize(("how", "culprit"), CASES)
def test_all_end_and_say_why(
    how: str, culprit: int, outcomes: dict[tuple[str, int], list[Outcome]]
) -> None:
    ended = outcomes[how, culprit]
    assert [o.exit_code for o in ended] == [
        (1 if how == "raises" else -9) if rank == culprit else 1 for rank in range(3)
    ]
    for rank in {0, 1, 2} - {culprit}:
        words = CASES[how, culprit]
        assert ended[rank].value.startswith(
            f"this run ends: rank {culprit} on node{culprit}: {words}"
        )


def leave_one_after_the_other(world: World) -> str:
    """Twice: rank 0 leaves last, then rank 1 does."""
    for late in (0, 1):
        with mock.patch.object(peers, "_GRACE_S", GRACE), watch_peers(world):
            if world.rank == late:
                time.sleep(3 * GRACE)
    return "done"


@pytest.mark.ranks
def test_ranks_that_end_well_do_so_in_any_order() -> None:
    assert run_ranks(2, leave_one_after_the_other) == ["done", "done"]


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


@contextmanager
def listening(address: str, answer: bytes, port: int = 0, after: float = 0.0) -> Iterator[int]:
    """A program at this address that answers one caller, or lets it wait; its port."""
    with socket.create_server((address, port)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                time.sleep(after)
                connection.sendall(answer)
                while connection.recv(1000):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])


def greets(link: Link) -> bool:
    link.send(kind="hello")
    try:
        return link.receive() == [{"kind": "welcome"}]
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize(
    "stranger", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"], ids=["silent", "speaks"]
)
def test_a_stranger_at_one_address_does_not_end_the_search(stranger: bytes) -> None:
    with (
        listening("127.0.0.2", stranger) as port,
        listening("127.0.0.3", b'{"kind": "welcome"}\n', port),
    ):
        link = connect(["127.0.0.2", "127.0.0.3"], port, greets, greet_s=0.2)
        assert link is not None
        assert link.socket.getpeername()[0] == "127.0.0.3"
        assert link.socket.gettimeout() is None
        link.close()


def test_a_welcome_may_come_late() -> None:
    with listening("127.0.0.1", b'{"kind": "welcome"}\n', after=0.5) as port:
        link = connect(["127.0.0.1"], port, greets, connect_s=0.1)
        assert link is not None
        link.close()


def test_other_hosts_are_not_sent_to_themselves() -> None:
    assert "127.0.0.1" in own_addresses("localhost", is_alone=True)
    several = own_addresses("localhost", is_alone=False)
    assert not any(map(is_loopback, several))


def test_a_hub_without_room_waits_for_some(caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub(2, "secret", lambda cause: None)
    asked = []
    accept = hub._accept
    hub._accept = lambda: (asked.append(1), accept())[1]  # type: ignore[method-assign]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as rank:
        lowest = os.dup(0)  # a number that is free
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            rank.connect(("127.0.0.1", hub.port))
            time.sleep(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert 1 <= len(asked) < 20
        rank.sendall(b'{"token": "secret", "rank": 1}\n')
        assert b"welcome" in rank.recv(100)
        hub.leave()
    assert [record.getMessage() for record in caplog.records] == [
        "rank 0 cannot take the connections of all ranks, whose end is not noticed at once: Too many open "
        f"files (ulimit -n is {lowest}; raise it to the number of ranks and 1024 more)"
    ]


def test_a_lost_host_is_not_called_killed() -> None:
    assert "no answer for 30 s" in broken(3, "node2", TimeoutError(110, "timed out")).text()
    assert "killed?" in broken(3, "node2", None).text()


def test_one_rank_needs_no_watch() -> None:
    with watch_peers(World()):
        pass
