"""The store at which the ranks of a run find each other: torch's ``TCPStore`` at MASTER_ADDR:MASTER_PORT.

It is in rank 0, or in the agent that has started it (torchrun, ``deepy.py``), which then says so in
``TORCHELASTIC_USE_AGENT_STORE``. Torch's own client waits as long as a collective may take and then says
no more than that it has failed; here the way is tried first, so that whoever cannot come says why.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeAlias

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from megatron.errors import LaunchError, first_line
from megatron.runtime.world import World

# Seconds.
_TRY_S: Final = 5.0  # for an answer of an address
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_FIRST_LOOK: Final = 0.005  # between two looks into the store
_LONGEST_LOOK: Final = 0.5

_Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class MeetingStore:
    """The store, reached.

    Attributes:
        store: of this start alone.
        own_address: of this host, on the way there; None in the process that holds the store.
        its_address: at which it has answered; likewise.
    """

    store: Store
    own_address: str | None = None
    its_address: str | None = None


def open_store(world: World, patience_s: float) -> MeetingStore:
    """Hold the store, or reach it within ``patience_s`` seconds.

    Raises:
        LaunchError: the port is taken, the store cannot be reached, or what answers is no store.
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if holds_store(world):
        found = MeetingStore(hold_store(place, patience_s))
    else:
        found = reach_store(f"rank {world.rank} on {world.hostname}", place, patience_s)
    # A restart by torchrun meets in the same store, and must not find what the attempt before has left.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if _is_agents() else "0"
    return replace(found, store=PrefixStore(f"attempt_{attempt}", found.store))


def reach_store(who: str, place: _Address, patience_s: float) -> MeetingStore:
    """Reach the store that another process holds within ``patience_s`` seconds, in which signals are heard.

    Args:
        who: this process, for messages.

    Raises:
        LaunchError: see :func:`open_store`.
    """
    deadline = time.monotonic() + patience_s
    own, its = _knock(who, place, deadline, patience_s)
    return MeetingStore(_enter(who, (its, place[1]), deadline), own, its)


def pauses(patience_s: float) -> Iterator[None]:
    """Until ``patience_s`` seconds are over, in growing pauses: Ctrl-C ends them, a wait of torch's not."""
    deadline, pause = time.monotonic() + patience_s, _FIRST_LOOK
    while time.monotonic() < deadline:
        yield
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_LOOK)


def holds_store(world: World) -> bool:
    """Whether the store is in this process."""
    return world.is_first and not _is_agents()


def _is_agents() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def hold_store(place: _Address, patience_s: float) -> TCPStore:
    """The store in this process, on all its interfaces; at port 0 one that is free is taken.

    Raises:
        LaunchError: the port cannot be had.
    """
    try:
        return TCPStore(
            "localhost",
            place[1],
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=timedelta(seconds=patience_s),
        )
    except RuntimeError as error:
        raise LaunchError(
            f"the ranks cannot meet at {place[0]}:{place[1]}: rank 0 cannot listen there\n"
            f"  found: {first_line(error)}\n"
            "  to do: the port is taken by another program: set master_port (MASTER_PORT) to a free one, or "
            "leave it out"
        ) from error


def _knock(who: str, place: _Address, deadline: float, patience_s: float) -> tuple[str, str]:
    """Try to connect until somebody answers; the address of this host on the way, and the other's."""
    pause = _FIRST_PAUSE
    while True:
        try:
            left = deadline - time.monotonic()
            with socket.create_connection(place, timeout=max(0.1, min(_TRY_S, left))) as way:
                own, its = way.getsockname(), way.getpeername()
            if own != its:
                return str(own[0]), str(its[0])
            # On one host a port that nobody has may be given to the caller itself, which then answers.
            problem: OSError = ConnectionRefusedError("Connection refused")
        except OSError as error:
            problem = error
        except UnicodeError as error:  # no name of a host has such a form
            problem = socket.gaierror(socket.EAI_NONAME, str(error))
        if time.monotonic() + pause > deadline:
            raise LaunchError(_unreachable(who, place, problem, patience_s)) from problem
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def _unreachable(who: str, place: _Address, problem: OSError, patience_s: float) -> str:
    if isinstance(problem, socket.gaierror):
        remedy = "set master_addr (MASTER_ADDR) to a name or an address that every host knows"
    elif isinstance(problem, ConnectionRefusedError):
        remedy = (
            "see the log of rank 0's host: nobody listens at this port there, or MASTER_ADDR and "
            "MASTER_PORT are not those of rank 0"
        )
    else:
        remedy = (
            f"open port {place[1]} in the firewall between the hosts, or set master_addr (MASTER_ADDR) to "
            "rank 0's address in another network; ./deepy.py doctor tries the ways between the hosts"
        )
    return (
        f"{who} cannot reach rank 0 at {place[0]}:{place[1]}\n"
        f"  found: {problem.strerror or problem}, again and again for {patience_s:g} s\n"
        f"  to do: {remedy}"
    )


def _enter(who: str, place: _Address, deadline: float) -> Store:
    """Connect to the store, in a thread: torch may wait without end for a program that is none."""
    found: Future[Store] = Future()

    def connect() -> None:
        left = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        try:
            found.set_result(
                TCPStore(*place, is_master=False, wait_for_workers=False, timeout=left)
            )
        except RuntimeError as error:
            found.set_exception(error)

    threading.Thread(target=connect, name="meeting store", daemon=True).start()
    try:
        return found.result(max(1.0, deadline - time.monotonic()) + _TRY_S)
    except (RuntimeError, NotInTime) as error:
        raise LaunchError(
            f"{who}: what answers at {place[0]}:{place[1]} is not rank 0\n"
            f"  found: {first_line(error) or 'no word of a TCPStore'}\n"
            "  to do: another program has this port: set master_port (MASTER_PORT) to a free one, or leave "
            "it out"
        ) from error
