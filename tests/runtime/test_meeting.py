"""Protects the start of a run: nobody waits long for a rank that does not come, and it is named."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import tests.support.ranks  # noqa: F401 - says what the fork server imports
from megatron.errors import DataError, NeoXError
from megatron.runtime import process, roll_call
from megatron.runtime.interface import choose_interface, interface_of
from megatron.runtime.process import end_process, start_process
from megatron.runtime.roll_call import Signature, absent_hosts, problems_are_told, ranges
from megatron.runtime.world import World
from tests.support.ranks import free_port

pytestmark = pytest.mark.ranks
_context = multiprocessing.get_context("forkserver")

# Seconds.
PATIENCE = 6.0
TOO_LONG = 60.0

Place = Mapping[str, str]


def come(pipe: Connection, place: Place, host: str) -> None:
    os.environ.update(place)
    with (
        mock.patch.object(process, "MEETING_PATIENCE_S", PATIENCE),
        mock.patch.object(roll_call, "_MARGIN_S", 1.0),
        mock.patch.object(World, "from_env", return_value=replace(World.from_env(), hostname=host)),
    ):
        try:
            with problems_are_told():
                if "FAILS" in place:
                    raise DataError(place["FAILS"])
                world = start_process("gloo")
            numbers = (world.local_rank, world.local_size, world.node_rank, world.num_nodes)
            pipe.send((numbers, sum(world.all_gather(world.rank))))
            end_process()
        except NeoXError as error:
            pipe.send(str(error))
    pipe.close()
    os._exit(0)


def outcomes(places: Sequence[tuple[Place, str]]) -> list[object]:
    """What has become of processes with these variables, on hosts of these names."""
    started = []
    for place, host in places:
        ours, theirs = _context.Pipe(duplex=False)
        _context.Process(target=come, args=(theirs, place, host), daemon=True).start()
        theirs.close()
        started.append(ours)
    found = []
    for pipe in started:
        assert pipe.poll(TOO_LONG), "a rank neither starts nor says why"
        found.append(pipe.recv())
    return found


def rank(number: int, size: int, port: int, local: tuple[int, int] | None = (0, 1)) -> Place:
    place = {"RANK": str(number), "WORLD_SIZE": str(size)}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if local is not None:
        place |= {"LOCAL_RANK": str(local[0]), "LOCAL_WORLD_SIZE": str(local[1])}
    return place


@contextmanager
def a_program_that_says_nothing() -> Iterator[int]:
    """A listener at the port that it yields."""
    with socket.create_server(("", 0)) as listener:
        yield int(listener.getsockname()[1])


def one_does_not_come() -> list[object]:
    port = free_port()
    return outcomes(
        [
            (rank(0, 5, port, (0, 2)), "alpha"),
            (rank(1, 5, port, (1, 2)), "alpha"),
            (rank(2, 5, port, (0, 2)), "beta"),
        ]
    )


def one_does_not_come_of_hosts_that_are_known() -> list[object]:
    place = dict(rank(0, 3, free_port(), (0, 2)))
    return outcomes([(place | {"NEOX_HOSTS": "alpha,me@beta"}, "alpha")])


def sizes_differ() -> list[object]:
    port = free_port()
    return outcomes([(rank(0, 3, port), "alpha"), (rank(3, 4, port), "beta")])


def one_fails_that_knows_no_address() -> list[object]:
    place = dict(rank(1, 2, free_port()))
    del place["MASTER_ADDR"]
    return outcomes([(place | {"FAILS": "data.bin: gone"}, "beta")])


def no_port_has_this_number() -> list[object]:
    return outcomes([(rank(1, 2, 99_999), "beta")])


def no_host_has_such_a_name() -> list[object]:
    return outcomes([(rank(1, 2, free_port()) | {"MASTER_ADDR": "node..1"}, "beta")])


def one_cannot_come() -> list[object]:
    port = free_port()
    broken = rank(2, 3, port) | {"FAILS": "data.bin: gone\n  to do: bring it back"}
    return outcomes([(rank(0, 3, port), "alpha"), (rank(1, 3, port), "beta"), (broken, "gamma")])


def the_first_cannot_come_to_its_agent() -> list[object]:
    store = TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=9)
    )
    agents = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    first, other = (rank(number, 2, store.port) | agents for number in range(2))
    return outcomes([(first | {"FAILS": "data.bin: gone"}, "alpha"), (other, "beta")])


def nobody_listens() -> list[object]:
    return outcomes([(rank(1, 2, free_port()), "beta")])


def no_such_name() -> list[object]:
    return outcomes([(rank(1, 2, free_port()) | {"MASTER_ADDR": "nowhere.invalid"}, "beta")])


def the_port_is_anothers() -> list[object]:
    with a_program_that_says_nothing() as port:
        return outcomes([(rank(0, 2, port), "alpha"), (rank(1, 2, port), "beta")])


def one_comes_twice() -> list[object]:
    port = free_port()
    places = [(rank(0, 3, port), "alpha"), (rank(1, 3, port), "beta"), (rank(1, 3, port), "gamma")]
    return outcomes(places)


def the_first_does_not_come_to_its_agent() -> list[object]:
    store = TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=9)
    )
    place = rank(1, 2, store.port) | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    return outcomes([(place, "beta")])


def nodes_of_two_and_one() -> list[object]:
    port = free_port()
    return outcomes(
        [
            (rank(0, 3, port, (0, 2)), "alpha"),
            (rank(1, 3, port, (1, 2)), "alpha"),
            (rank(2, 3, port, (0, 1)) | {"GROUP_RANK": "1"}, "beta"),
        ]
    )


def only_ranks_are_known() -> list[object]:
    port = free_port()
    hosts = ["pod-a", "pod-b", "pod-a"]
    return outcomes([(rank(number, 3, port, None), host) for number, host in enumerate(hosts)])


CASES = (
    one_does_not_come,
    one_does_not_come_of_hosts_that_are_known,
    sizes_differ,
    one_fails_that_knows_no_address,
    no_port_has_this_number,
    no_host_has_such_a_name,
    one_cannot_come,
    the_first_cannot_come_to_its_agent,
    nobody_listens,
    no_such_name,
    the_port_is_anothers,
    one_comes_twice,
    the_first_does_not_come_to_its_agent,
    nodes_of_two_and_one,
    only_ranks_are_known,
)


@pytest.fixture(scope="module")
def found() -> Mapping[str, list[object]]:
    """What has come of each case. They run beside each other: most of it is waiting."""
    with ThreadPoolExecutor(len(CASES)) as pool:
        ends = pool.map(lambda case: case(), CASES)
        return dict(zip((case.__name__ for case in CASES), ends, strict=True))


def test_who_is_missing_is_named_to_all(found: Mapping[str, list[object]]) -> None:
    first, *others = found["one_does_not_come"]
    assert others == [first, first]
    lines = str(first).splitlines()
    assert lines[:3] == [
        "2 of 5 ranks have not come within 6 s",
        "  missing: 3 on beta; 4 on hosts of which no rank has come",
        "  here: 0-1 on alpha; 2 on beta",
    ]


def test_hosts_of_which_nobody_has_come_are_named(found: Mapping[str, list[object]]) -> None:
    (said,) = found["one_does_not_come_of_hosts_that_are_known"]
    assert "  missing: 1 on alpha; 2 on beta, of which no rank has come\n" in str(said)


def test_which_hosts_the_missing_ranks_are_of() -> None:
    def ranks(host: str, node: int, first: int) -> Signature:
        return Signature(host, node, first, 2, 1, None)

    came = [ranks("a", 0, 0), ranks("d", 3, 9), ranks("d", 3, 9)]
    end = ", of which no rank has come"
    # How many ranks each of several hosts was to have, nobody knows.
    between = dict.fromkeys(range(2, 9), f"b, c{end}")
    assert absent_hosts(12, came, ["a", "b", "c", "d", "e"]) == between | {11: f"e{end}"}
    assert absent_hosts(11, came, ["a", "b", "c", "d"]) == between
    # Without a word of the start, and where others have counted the hosts.
    assert absent_hosts(12, came, []) == {}
    assert absent_hosts(12, came, ["d", "b", "c", "a", "e"]) == {}


def test_a_rank_that_cannot_come_says_why_to_all(found: Mapping[str, list[object]]) -> None:
    *others, own = found["one_cannot_come"]
    assert own == "data.bin: gone\n  to do: bring it back"
    assert others == [f"rank 2 on gamma cannot come: {own}"] * 2
    assert found["the_first_cannot_come_to_its_agent"] == [
        "data.bin: gone",
        "rank 0 on alpha cannot come: data.bin: gone",
    ]


def test_its_own_words_are_kept_where_nobody_can_be_told(found: Mapping[str, list[object]]) -> None:
    assert found["one_fails_that_knows_no_address"] == ["data.bin: gone"]


def test_what_stands_in_the_way_is_said(found: Mapping[str, list[object]]) -> None:
    (refused,) = found["nobody_listens"]
    assert re.match(
        r"rank 1 on beta cannot reach rank 0 at 127\.0\.0\.1:\d+\n"
        r"  found: Connection refused, again and again for 6 s\n  to do: see the log of rank 0's host",
        str(refused),
    )
    (unknown,) = found["no_such_name"]
    assert "cannot reach rank 0 at nowhere.invalid:" in str(unknown)
    assert "set master_addr (MASTER_ADDR) to a name or an address that every host" in str(unknown)

    (odd,) = found["no_host_has_such_a_name"]
    assert "cannot reach rank 0 at node..1:" in str(odd)
    (port,) = found["no_port_has_this_number"]
    assert str(port).startswith("environment: WORLD_SIZE=2 but MASTER_PORT is '99999'")


def test_starts_that_count_other_ranks(found: Mapping[str, list[object]]) -> None:
    for end in found["sizes_differ"]:
        assert re.search(
            r"^rank \d on \w+ has WORLD_SIZE=[34], the first to come has [34]\n", str(end)
        )


def test_a_port_of_another_program(found: Mapping[str, list[object]]) -> None:
    first, other = map(str, found["the_port_is_anothers"])
    assert "rank 0 cannot listen there" in first
    assert "set master_port (MASTER_PORT) to a free one" in first
    assert re.match(r"rank 1 on beta: what answers at 127\.0\.0\.1:\d+ is not rank 0\n", other)


def test_two_that_say_they_are_the_same(found: Mapping[str, list[object]]) -> None:
    first, *others = map(str, found["one_comes_twice"])
    assert others == [first, first]
    places = re.match(
        r"two processes are rank 1 of 3: on (\w+) \(process \d+\) and (\w+) \(process \d+\)\n",
        first,
    )
    assert places is not None
    assert {places[1], places[2]} == {"beta", "gamma"}


def test_a_store_in_an_agent_waits_for_rank_0_no_longer(found: Mapping[str, list[object]]) -> None:
    (end,) = found["the_first_does_not_come_to_its_agent"]
    assert str(end).startswith("rank 1 on beta: rank 0 has not come, after 6 s\n")


def test_nodes_are_counted(found: Mapping[str, list[object]]) -> None:
    assert found["nodes_of_two_and_one"] == [
        ((0, 2, 0, 2), 3),
        ((1, 2, 0, 2), 3),
        ((0, 1, 1, 2), 3),
    ]


def test_without_local_ranks_they_are_counted_by_host(found: Mapping[str, list[object]]) -> None:
    assert found["only_ranks_are_known"] == [
        ((0, 2, 0, 2), 3),
        ((0, 1, 1, 2), 3),
        ((1, 2, 0, 2), 3),
    ]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([0, 1, 2, 3, 6], "0-3, 6"), ([1, 3, 4], "1, 3-4")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_interfaces_are_found_by_their_addresses() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert interface_of("2001:db8::1") is None


def test_an_interface_that_the_user_has_chosen_stays() -> None:
    for address in (None, "127.0.0.1"):
        env: dict[str, str] = {}
        choose_interface(address, env)
        assert env == {}
    env = {"GLOO_SOCKET_IFNAME": "ib0"}
    choose_interface("192.0.2.1", env)
    assert env == {"GLOO_SOCKET_IFNAME": "ib0"}


def late_messages(world: World) -> tuple[float, float]:
    """A message and a key of the store that come later than ranks wait for each other at the start."""
    store = dist.distributed_c10d._get_default_store()
    if world.rank == 0:
        time.sleep(3.0)
        store.set("late", "1")
        dist.send(torch.tensor([7.0]), 1)
        return 0.0, 7.0
    got = torch.zeros(1)
    key = float(store.get("late"))
    dist.recv(got, 0)
    return key, got.item()


def short_patience(pipe: Connection, place: Place) -> None:
    os.environ.update(place)
    with mock.patch.object(process, "MEETING_PATIENCE_S", 1.5):
        pipe.send(late_messages(start_process("gloo")))
    os._exit(0)


def test_the_patience_of_the_start_is_none_of_the_run() -> None:
    port = free_port()
    pipes = []
    for number in range(2):
        ours, theirs = _context.Pipe(duplex=False)
        place = rank(number, 2, port) | {"GROUP_RANK": str(number)}
        _context.Process(target=short_patience, args=(theirs, place), daemon=True).start()
        theirs.close()
        pipes.append(ours)
    assert all(pipe.poll(TOO_LONG) for pipe in pipes)
    assert [pipe.recv() for pipe in pipes] == [(0.0, 7.0), (1.0, 7.0)]
