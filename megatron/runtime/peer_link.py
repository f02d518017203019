"""One TCP connection between two processes: lines of JSON, and a kernel that notices a silent other end.

The kernel answers and asks for a process that is busy, stopped in a debugger or waiting in a
collective; a beat from a Python thread would stop wherever the interpreter's lock is held. So a
connection that lasts means that the other process lives, and that its host can be reached.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# Seconds after which a host that does not answer is lost.
SILENCE_S = 30
# Bytes: by default, longer lines come from a stranger.
MAX_LINE = 32_768

Message: TypeAlias = dict[str, Any]


class Link:
    """The connection and what has come of its next line.

    Attributes:
        rank: at the other end; None until it has said so.
        host: name of its host.
    """

    def __init__(self, connection: socket.socket, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self.socket = connection
        self.rank: int | None = None
        self.host = "an unknown host"
        self._rest = b""
        _keep_alive(connection)

    def send(self, **message: Any) -> bool:
        """Send one line; False if the other end has gone, which whoever receives will notice."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """The whole lines that have come, after waiting as the socket does; None at the end.

        Raises:
            OSError: the connection broke; the number says how.
            ValueError: what came is no message.
        """
        data = self.socket.recv(65_536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._max_line:
            raise ValueError("a line without an end")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line that is no object")
        return messages

    def close(self) -> None:
        self.socket.close()


def connect(
    addresses: Sequence[str],
    port: int,
    greet: Callable[[Link], bool],
    *,
    connect_s: float = 5.0,
    greet_s: float = 30.0,
) -> Link | None:
    """A connection to the first address at which the one that is wanted answers; None without such.

    Args:
        greet: whether it is the one: says who calls and hears the answer. A program that has nothing
            to do with this run may listen at another address of the list.
        connect_s: seconds that each address gets to accept.
        greet_s: seconds that it then gets for each answer: it may be busy with a thousand others.
    """
    for address in addresses:
        try:
            link = Link(socket.create_connection((address, port), timeout=connect_s))
        except OSError:
            continue
        link.socket.settimeout(greet_s)
        if greet(link):
            link.socket.settimeout(None)
            return link
        link.close()
    return None


def own_addresses(main_address: str, *, is_alone: bool) -> list[str]:
    """Where others may reach this host: as ``main_address``, its name's and its interface's address.

    On another host a loopback address would lead to that host itself: those count only where this one
    ``is_alone``.
    """
    found = []
    for name in (main_address, socket.gethostname()):
        try:
            found += [
                str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            ]
        except OSError:
            continue  # a name that is not known here is no address of this host
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((anywhere, 9))  # sends nothing: only chooses the interface
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue  # no route out by this protocol
    return [each for each in dict.fromkeys(found) if is_alone or not is_loopback(each)]


def is_loopback(address: str) -> bool:
    """Whether an address (not a name) stays on its host."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENCE_S // 3),
        ("TCP_KEEPINTVL", SILENCE_S // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", SILENCE_S * 1000),
    ):
        if hasattr(socket, name):  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
