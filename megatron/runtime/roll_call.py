"""Who has come: before the first collective every rank signs in, and who is missing is named.

A collective that waits for a rank that never came would wait for half an hour and name nobody. Here
rank 0 counts the signatures in the store and tells all others what has come of it::

    size        WORLD_SIZE of the first to come     rank/<r>  how often rank r has signed in
    came        ranks that have signed in           who/<r>   its host, as JSON
    problem     why a rank cannot come, or must not
    verdict     JSON: what rank 0 has found

Nobody waits longer than ``patience_s``, and not that long for a rank that has said why it does not come.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, groupby
from typing import Any, Final

from torch.distributed import Store  # type: ignore[attr-defined]

from megatron.errors import LaunchError, first_line, words_of
from megatron.ranks import is_own_address, named_hosts
from megatron.runtime.meeting_store import MeetingStore, holds_store, open_store, pauses
from megatron.runtime.world import World

# Seconds.
_MARGIN_S: Final = 15.0  # in which rank 0 may be later than this rank's patience
_TELLING_S: Final = 1.0  # for the way to the store, where there is bad news alone
_READING_S: Final = 1.0  # that the others get to read why, before the store ends with rank 0
_MOST_SHOWN: Final = 8  # hosts in a message


@dataclass(frozen=True)
class Signature:
    """What a rank says of itself."""

    host: str
    node: int
    first: int  # lowest rank of its node
    local_size: int
    process: int
    way: str | None  # the address at which it has reached the store


@dataclass(frozen=True)
class Attendance:
    """All ranks have come.

    Attributes:
        num_nodes: how many nodes they are on.
        first_address: where other nodes reach rank 0's host; None where there is no other.
    """

    num_nodes: int
    first_address: str | None


def call_roll(world: World, meeting: MeetingStore, patience_s: float) -> Attendance:
    """Sign in, and wait until all ranks have.

    Raises:
        LaunchError: a rank is missing, or two processes are the same rank.
    """
    store = meeting.store
    mine = Signature(
        world.hostname,
        world.node_rank,
        world.rank - world.local_rank,
        world.local_size,
        os.getpid(),
        meeting.its_address,
    )
    size = int(store.compare_set("size", "", str(world.size)))
    if size != world.size:
        raise LaunchError(_other_size(store, world, size))
    if store.add(f"rank/{world.rank}", 1) > 1:
        raise LaunchError(_twice(store, world, mine))
    store.set(f"who/{world.rank}", json.dumps(vars(mine)))
    store.add("came", 1)
    if not world.is_first:
        return _hear_verdict(store, world, patience_s)
    problem = _wait_for_all(store, world, patience_s)
    if problem is not None:
        store.set("verdict", json.dumps({"problem": problem}))
        time.sleep(_READING_S)
        raise LaunchError(problem, everywhere=True)
    signatures = _signatures(store, range(world.size))
    here = (mine.host, mine.node)
    ways = [each.way for each in signatures if (each.host, each.node) != here and each.way]
    found = Attendance(len({each.node for each in signatures}), ways[0] if ways else None)
    store.set("verdict", json.dumps(vars(found)))
    return found


@contextmanager
def problems_are_told() -> Iterator[None]:
    """An error in the block, in which this process joins its run, ends the ranks that wait for it.

    Launchers end the ranks of one host. Those of other hosts would wait for one that has found its
    configuration missing, say, as long as for one that is late.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or error.code:
            # At worst the others are told later that this rank is missing.
            with suppress(LaunchError, RuntimeError, ValueError, OSError):
                _tell(World.from_env(), error)
        raise


def _tell(world: World, error: BaseException) -> None:
    is_placed = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if world.size == 1 or holds_store(world) or not is_placed:
        return
    store = open_store(world, _TELLING_S).store
    if store.check(["verdict"]) or store.check(["problem"]):  # the others know
        return
    text = f"rank {world.rank} on {world.hostname} cannot come: {words_of(error)}"
    if world.is_first:
        store.set("verdict", json.dumps({"problem": text}))
    else:
        store.set("problem", text)


def _wait_for_all(store: Store, world: World, patience_s: float) -> str | None:
    """Rank 0: why the run cannot start; None when all have come."""
    for _ in pauses(patience_s):
        if store.add("came", 0) >= world.size:
            return None
        if store.check(["problem"]):
            return store.get("problem").decode()
    return _missing(store, world, patience_s)


def _hear_verdict(store: Store, world: World, patience_s: float) -> Attendance:
    here = f"rank {world.rank} on {world.hostname}"
    remedy = "\n  to do: see the log of rank 0's host"
    try:
        for _ in pauses(patience_s + _MARGIN_S):
            if store.check(["verdict"]):
                break
        else:
            has_come = store.check(["who/0"])
            what = "waits for others since later than this rank" if has_come else "has not come"
            raise LaunchError(f"{here}: rank 0 {what}, after {patience_s:g} s{remedy}")
        verdict: dict[str, Any] = json.loads(store.get("verdict"))
    except RuntimeError as error:
        raise LaunchError(
            f"{here}: rank 0 has ended before all ranks had come\n  found: {first_line(error)}{remedy}"
        ) from error
    if "problem" in verdict:
        raise LaunchError(verdict["problem"], everywhere=True)
    return Attendance(**verdict)


def _signatures(store: Store, ranks: Iterable[int]) -> list[Signature]:
    """Of ``ranks``, which have signed in."""
    return [
        Signature(**json.loads(each)) for each in store.multi_get([f"who/{rank}" for rank in ranks])
    ]


def _other_size(store: Store, world: World, size: int) -> str:
    """Tell everybody, and this process, that it counts other ranks than the first to come."""
    text = (
        f"rank {world.rank} on {world.hostname} has WORLD_SIZE={world.size}, the first to come has {size}\n"
        "  to do: start all hosts with the same numbers of nodes and of processes on each, and see whether "
        "two runs were given the same MASTER_ADDR and MASTER_PORT"
    )
    store.set("problem", text)
    return text


def _twice(store: Store, world: World, mine: Signature) -> str:
    """Tell everybody, and this process, that ``mine`` is of a rank that is there already."""
    store.wait([f"who/{world.rank}"], timedelta(seconds=_MARGIN_S))
    (first,) = _signatures(store, [world.rank])
    places = " and ".join(f"{each.host} (process {each.process})" for each in (first, mine))
    text = (
        f"two processes are rank {world.rank} of {world.size}: on {places}\n"
        "  expected: RANK from 0 to WORLD_SIZE - 1, each once\n"
        "  to do: give each host its own node rank (torchrun: --node_rank), and see whether a start was "
        "made twice with the same MASTER_ADDR and MASTER_PORT"
    )
    store.set("problem", text)
    return text


def _missing(store: Store, world: World, patience_s: float) -> str:
    there = [rank for rank in range(world.size) if store.check([f"who/{rank}"])]
    here = dict(zip(there, _signatures(store, there), strict=True))
    missing = [rank for rank in range(world.size) if rank not in here]
    host_of = {
        rank: each.host
        for each in here.values()
        for rank in range(each.first, each.first + each.local_size)
    }
    host_of = absent_hosts(world.size, list(here.values()), named_hosts(os.environ)) | host_of
    known: dict[str, list[int]] = {}
    for rank in missing:
        known.setdefault(host_of.get(rank, "hosts of which no rank has come"), []).append(rank)
    came: dict[str, list[int]] = {}
    for rank, each in here.items():
        came.setdefault(each.host, []).append(rank)
    address = os.environ["MASTER_ADDR"]
    elsewhere = f"  MASTER_ADDR: {address} is no address of {world.hostname}, where rank 0 is: is it right?\n"
    return (
        f"{len(missing)} of {world.size} ranks have not come within {patience_s:g} s\n"
        f"  missing: {_by_host(known)}\n"
        f"  here: {_by_host(came)}\n"
        f"{'' if is_own_address(address) else elsewhere}"
        "  to do: see the logs of the missing ones' hosts: were they started, and did they say why they "
        "ended? ./deepy.py doctor tries the ways between the hosts"
    )


def absent_hosts(size: int, came: Sequence[Signature], names: Sequence[str]) -> dict[int, str]:
    """By rank, the hosts that the start has named and of which no rank has come, as far as that can be known.

    Args:
        size: ranks of the run.
        came: their signatures.
        names: of all hosts by node; empty where the start has not said them.
    """
    there = {each.node: each for each in came}
    hosts = [name.rpartition("@")[2] for name in names]
    for node, each in there.items():
        # Slurm may count them in an order of its own.
        if node >= len(hosts) or (each.host in hosts and hosts[node] != each.host):
            return {}
    found: dict[int, str] = {}
    first, absent = 0, list[str]()
    for node in range(len(hosts) + 1):
        if node < len(hosts) and node not in there:
            absent.append(hosts[node])
            continue
        end = there[node].first if node in there else size
        found |= dict.fromkeys(range(first, end), f"{_shown(absent)}, of which no rank has come")
        first, absent = end + (there[node].local_size if node in there else 0), []
    return found


def _shown(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_SHOWN
    return ", ".join(hosts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _by_host(ranks: Mapping[str, list[int]]) -> str:
    parts = [f"{ranges(some)} on {host}" for host, some in ranks.items()]
    more = len(parts) - _MOST_SHOWN
    return "; ".join(parts[:_MOST_SHOWN]) + (f"; and on {more} more hosts" if more > 0 else "")


def ranges(numbers: Iterable[int]) -> str:
    """``0-3, 6`` for 0, 1, 2, 3, 6, which ascend."""
    counter = count()
    runs = [list(run) for _, run in groupby(numbers, lambda number: number - next(counter))]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def placed_by_host(world: World, store: Store) -> World:
    """``world`` with local ranks counted by host, where nothing but RANK and WORLD_SIZE is known.

    A process in a container of its own has no other place; :meth:`World.from_env` took all for one node.
    All ranks have signed in.
    """
    hosts = [each.host for each in _signatures(store, range(world.size))]
    nodes = list(dict.fromkeys(hosts))
    return replace(
        world,
        local_rank=hosts[: world.rank].count(world.hostname),
        local_size=hosts.count(world.hostname),
        node_rank=nodes.index(world.hostname),
        num_nodes=len(nodes),
    )
