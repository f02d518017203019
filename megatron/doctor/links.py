"""Measure one link: a listener on each host, and what another host asks it for over plain TCP."""

from __future__ import annotations

import select
import socket
import statistics
import threading
import time
from contextlib import suppress
from typing import Final, TypedDict

from megatron.doctor.channel import Channel, Gone

_CHUNK: Final = bytes(256 * 1024)
_PINGS: Final = 15
# What lies in buffers when time is up has to drain over a slow link too.
_BUFFER: Final = 1024 * 1024


class LinkFacts(TypedDict):
    """Seconds there and back (median), bytes a second to the other and from it, over one TCP stream."""

    latency: float
    up: float
    down: float


class Listener:
    """Answers other probes at a port that the system chose, until the process ends."""

    def __init__(self) -> None:
        self._door = socket.create_server(("", 0), backlog=64)
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._door.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        channel = Channel(connection)
        with suppress(Gone, OSError, KeyError), connection:
            while True:
                asked = channel.receive(10.0)
                if asked["do"] == "ping":
                    channel.send()
                elif asked["do"] == "take":
                    channel.send(rate=_take(connection, float(asked["seconds"])))
                elif asked["do"] == "give":
                    _give(connection, float(asked["seconds"]) * 2 + 2.0)


def reach(address: str, port: int, patience: float) -> str | None:
    """Why ``address:port`` cannot be reached; None if it can."""
    try:
        with socket.create_connection((address, port), timeout=patience) as connection:
            channel = Channel(connection)
            channel.send(do="ping")
            channel.receive(patience)
    except TimeoutError:
        return "no answer: packets are dropped on the way"
    except (OSError, Gone) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def measure(address: str, port: int, seconds: float) -> LinkFacts:
    """Latency, then the rate each way for ``seconds``.

    Raises:
        OSError: no connection.
        Gone: the other end does not answer.
    """
    with socket.create_connection((address, port), timeout=5.0) as connection:
        channel = Channel(connection)
        ways = []
        for _ in range(_PINGS):
            start = time.monotonic()
            channel.send(do="ping")
            channel.receive(5.0)
            ways.append(time.monotonic() - start)
            if sum(ways) > seconds:
                break
        channel.send(do="take", seconds=seconds)
        _give(connection, seconds * 2 + 2.0)
        up = float(channel.receive(seconds * 2 + 5.0)["rate"])
    with socket.create_connection((address, port), timeout=5.0) as connection:
        Channel(connection).send(do="give", seconds=seconds)
        down = _take(connection, seconds)
    return {"latency": statistics.median(ways), "up": up, "down": down}


def _take(connection: socket.socket, seconds: float) -> float:
    """Bytes a second that arrive, for ``seconds`` from the first one on."""
    connection.settimeout(5.0)
    # The first piece only tells that they have begun.
    buffer = bytearray(len(_CHUNK))
    connection.recv_into(buffer)
    start, taken, passed = time.monotonic(), 0, 0.0
    while passed < seconds:
        try:
            size = connection.recv_into(buffer)
        except TimeoutError:
            size = 0
        passed = time.monotonic() - start
        if not size:
            break
        taken += size
    return taken / max(passed, 1e-6)


def _give(connection: socket.socket, most_seconds: float) -> None:
    """Send until the other end speaks or closes, for ``most_seconds`` at most."""
    deadline = time.monotonic() + most_seconds
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    connection.settimeout(0.5)
    with suppress(ConnectionError):
        while time.monotonic() < deadline:
            if select.select([connection], [], [], 0)[0]:
                return
            with suppress(TimeoutError):
                connection.send(_CHUNK)
