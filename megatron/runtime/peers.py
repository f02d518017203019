"""The ranks of a run notice each other's end, whoever has started them.

A rank that fails, is killed or loses its network leaves the others in a collective, for as long as
half an hour. A launcher of one host stops its own ranks; those of other hosts learn of it here: every
rank keeps one connection to rank 0, which tells the first cause to all. A thread then says it and
ends the process, because the main thread may never come back from the collective.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from functools import partial
from typing import Protocol

from megatron.errors import EXIT_FAULT, is_lost_peer
from megatron.runtime.peer_cause import Cause, broken, raised
from megatron.runtime.peer_hub import Hub
from megatron.runtime.peer_link import Link, Message, connect, own_addresses
from megatron.runtime.world import World

logger = logging.getLogger(__name__)

# Seconds from the news to the end: the failed rank speaks first, and a launcher may end this one.
_GRACE_S = 3.0
# Seconds that a rank whose collective broke waits to be told why.
_TOLD_S = 6.0


@contextlib.contextmanager
def watch_peers(world: World) -> Iterator[None]:
    """While the block runs, the end of another rank ends this process within seconds, with status 1.

    A collective: all ranks enter it together. They may leave in any order. One that cannot reach
    rank 0 works without the watch, and rank 0 says so.
    """
    if world.size == 1:
        yield
        return
    end = _Ending(world)
    side = _join(world, end)
    try:
        yield
    except BaseException as error:
        cause = raised(world.rank, world.hostname, error)
        if is_lost_peer(error):
            side.echo(cause)
            # The thread has the cause by then, and ends this process.
            threading.Event().wait(_TOLD_S)
        elif isinstance(error, SystemExit) and not error.code:
            end.call_off()
            side.leave()
            raise
        end.call_off()
        side.fail(cause)
        raise
    end.call_off()
    side.leave()


class _Side(Protocol):
    """What a rank can say: rank 0 to itself, the others over their connection."""

    def leave(self) -> None: ...

    def fail(self, cause: Cause) -> None: ...

    def echo(self, cause: Cause) -> None: ...


class _Ending:
    """Ends this process for a cause, unless its main thread ends it anyway."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._called_off = threading.Event()

    def call_off(self) -> None:
        self._called_off.set()

    def __call__(self, cause: Cause) -> None:
        if self._called_off.wait(_GRACE_S):
            return
        if self._speaks(cause):
            # Not by sys.stderr: the main thread may hold its lock.
            os.write(2, cause.text().encode())
        os._exit(EXIT_FAULT)

    def _speaks(self, cause: Cause) -> bool:
        """One rank of each host, if the failed one has not spoken there; ranks of a host are adjacent."""
        world = self._world
        if cause.said and cause.host == world.hostname:
            return False
        first = world.rank - world.local_rank
        return world.local_rank == (1 if cause.rank == first else 0)


class _Spoke:
    """The end of a rank other than 0: a thread waits for what rank 0 tells."""

    def __init__(self, link: Link | None, main_host: str, end: _Ending) -> None:
        self._link = link
        self._main_host = main_host
        self._end = end
        self._over = False
        if link is not None:
            threading.Thread(target=self._listen, args=(link,), name="peers", daemon=True).start()

    def leave(self) -> None:
        self._say("bye", "")

    def fail(self, cause: Cause) -> None:
        self._say("failed", cause.words)

    def echo(self, cause: Cause) -> None:
        if self._link is not None:
            self._link.send(kind="echo", words=cause.words)

    def _say(self, kind: str, words: str) -> None:
        self._over = True
        if self._link is not None:
            self._link.send(kind=kind, words=words)

    def _listen(self, link: Link) -> None:
        lost: OSError | None = None
        try:
            while (messages := link.receive()) is not None:
                for message in messages:
                    if message.get("kind") == "bye":
                        self._over = True
                    elif message.get("kind") == "cause" and not self._over:
                        self._end(_cause(message))
        except OSError as error:
            lost = error
        link.close()
        if not self._over:
            self._end(broken(0, self._main_host, lost))


def _join(world: World, end: _Ending) -> _Side:
    """Connect this rank to rank 0. All ranks call it together."""
    hub, offer = None, None
    if world.is_first:
        hub = Hub(world.size, secrets.token_hex(16), end)
        addresses = own_addresses(
            os.environ.get("MASTER_ADDR", "127.0.0.1"), is_alone=world.num_nodes == 1
        )
        offer = (addresses, hub.port, hub.token, world.hostname)
    offer = world.broadcast(offer)
    assert offer is not None
    addresses, port, token, main_host = offer
    link = None
    if hub is None:
        link = connect(addresses, port, partial(_greet, token=token, world=world))
    reached = world.all_gather(None if hub or link else world.hostname)
    if hub is None:
        return _Spoke(link, main_host, end)
    hosts = sorted({host for host in reached if host is not None})
    if hosts:
        logger.warning(
            "ranks on %s cannot reach rank 0 on %s at %s, port %d: the end of one is not noticed "
            "at once (firewall between the hosts?)",
            ", ".join(hosts[:8]),
            main_host,
            " or ".join(addresses) or "any address",
            port,
        )
    return hub


def _greet(link: Link, token: str, world: World) -> bool:
    """Whether rank 0 of this very run is at the other end."""
    link.send(kind="hello", token=token, rank=world.rank, host=world.hostname)
    try:
        welcome = link.receive() or [{}]
    except (OSError, ValueError):
        return False
    return bool(welcome[0].get("kind") == "welcome")


def _cause(message: Message) -> Cause:
    return Cause(
        rank=int(message["rank"]),
        host=str(message["host"]),
        words=str(message["words"]),
        said=bool(message["said"]),
    )
