"""Rank 0's end of the connections between ranks: it hears of the first failure and tells all others."""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from megatron.runtime.peer_cause import Cause, broken
from megatron.runtime.peer_link import Link, Message

logger = logging.getLogger(__name__)

# Seconds that the news of a broken collective waits for its cause, which may come just behind it.
_ECHO_S = 1.5
# What the system says when this process or the host can open nothing more, and seconds until it is
# asked again.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROOM_S = 0.1
# Files that a process opens besides its connections, generously.
_OTHER_FILES = 1024


class Hub:
    """Listens for the other ranks in a thread of its own, from its making on.

    Args:
        size: number of ranks of the run.
        token: what each rank has to show.
        on_cause: called once, in that thread or in the one that calls :meth:`fail`, when all others
            have been told.
    """

    def __init__(self, size: int, token: str, on_cause: Callable[[Cause], None]) -> None:
        _allow_files(size)
        self.token = token
        self._on_cause = on_cause
        self._links: set[Link] = set()
        self._echo: tuple[float, Cause] | None = None
        self._lock = threading.Lock()
        self._over = False
        self._has_no_room = False
        self._listener = _listener(size)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._waker, self._alarm = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="peers", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """This rank has ended well: the others go on without the watch."""
        with self._lock:
            self._over = True
        self._wake()
        self._thread.join()
        for link in self._links:
            link.send(kind="bye")
            link.close()
        for end in (self._listener, self._waker, self._alarm):
            end.close()
        self._selector.close()

    def fail(self, cause: Cause) -> None:
        """This is why the run ends, unless another cause came first."""
        with self._lock:
            if self._over:
                return
            self._over = True
            for link in self._links:
                if link.rank != cause.rank:
                    link.send(kind="cause", **asdict(cause))
        self._on_cause(cause)

    def echo(self, cause: Cause) -> None:
        """A rank's collective broke, which is a failure only if nobody says a better one soon."""
        with self._lock:
            if self._echo is None:
                self._echo = (time.monotonic() + _ECHO_S, cause)
        self._wake()

    def _wake(self) -> None:
        self._waker.send(b"!")

    def _serve(self) -> None:
        while not self._over:
            left = None if self._echo is None else self._echo[0] - time.monotonic()
            if self._echo is not None and left is not None and left <= 0:
                self.fail(self._echo[1])
                return
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, Link):
                    self._hear(key.data)
                else:
                    self._alarm.recv(64)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._say_no_room(error)
                time.sleep(_NO_ROOM_S)  # it still waits, and would be reported again at once
            return  # else: who has gone again is no rank
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, Link(connection))

    def _say_no_room(self, error: OSError) -> None:
        if not self._has_no_room:
            logger.warning(
                "rank 0 cannot take the connections of all ranks, whose end is not noticed at once: %s "
                "(ulimit -n is %d; raise it to the number of ranks and 1024 more)",
                error.strerror,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
        self._has_no_room = True

    def _hear(self, link: Link) -> None:
        lost: OSError | None = None
        try:
            messages = link.receive()
        except BlockingIOError:
            return
        except OSError as error:
            lost, messages = error, None
        except ValueError:
            messages = None  # a stranger: no rank speaks like this
        for message in messages or ():
            if not self._understand(link, message):
                self._drop(link)
                return
        if messages is None:
            self._drop(link)
            if link.rank is not None:
                self.fail(broken(link.rank, link.host, lost))

    def _understand(self, link: Link, message: Message) -> bool:
        """Whether more may come from this rank."""
        kind = message.get("kind")
        if link.rank is None:
            token, rank = message.get("token"), message.get("rank")
            known = isinstance(token, str) and hmac.compare_digest(
                token.encode(), self.token.encode()
            )
            if not known or not isinstance(rank, int):
                return False
            link.rank, link.host = rank, str(message.get("host"))
            with self._lock:
                self._links.add(link)
            return link.send(kind="welcome")
        if kind in ("failed", "echo"):
            cause = Cause(link.rank, link.host, str(message.get("words")), said=True)
            (self.fail if kind == "failed" else self.echo)(cause)
            # Its end is explained; the connection only brings it the cause of an echo.
            return bool(kind == "echo")
        return False

    def _drop(self, link: Link) -> None:
        self._selector.unregister(link.socket)
        with self._lock:
            self._links.discard(link)
        link.close()


def _listener(size: int) -> socket.socket:
    backlog = max(128, size)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is switched off on this host
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
    return socket.create_server(("", 0), backlog=backlog)


def _allow_files(size: int) -> None:
    """One open file for each rank, as far as the host lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = size + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
