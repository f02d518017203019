"""One TCP connection between two ranks: lines of JSON, and a kernel that notices a silent other end.

The kernel answers and asks for a process that is busy, stopped in a debugger or waiting in a
collective; a beat from a Python thread would stop wherever the interpreter's lock is held. So a
connection that lasts means that the other process lives, and that its host can be reached.
"""

from __future__ import annotations

import json
import socket
from typing import Any, TypeAlias

# Seconds after which a host that does not answer is lost.
SILENCE_S = 30
# Bytes: longer lines come from a stranger.
MAX_LINE = 32_768

Message: TypeAlias = dict[str, Any]


class Link:
    """The connection and what has come of its next line.

    Attributes:
        rank: at the other end; None until it has said so.
        host: name of its host.
    """

    def __init__(self, connection: socket.socket) -> None:
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
        if len(self._rest) > MAX_LINE:
            raise ValueError("a line without an end")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line that is no object")
        return messages

    def close(self) -> None:
        self.socket.close()


def connect(addresses: list[str], port: int, patience_s: float) -> Link | None:
    """A connection to the first address that answers, or None; ``patience_s`` is for each."""
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=patience_s)
        except OSError:
            continue
        return Link(connection)
    return None


def own_addresses(main_address: str) -> list[str]:
    """Where others may reach this host: as ``main_address``, its name's and its interface's address."""
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
    return list(dict.fromkeys(found))


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
