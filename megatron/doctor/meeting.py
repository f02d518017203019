"""The probes of all hosts meet at rank 0's and go through the same steps; who stops answering is left behind.

The probe of node 0 listens at ``MASTER_ADDR:MASTER_PORT``, where the run itself would meet. In each step
everyone gives what it knows and hears what the others gave. A host that does not give in time is missing
from that step, and the others go on.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Final, Protocol

from megatron.doctor.channel import Channel, Gone
from megatron.errors import LaunchError

PATIENCE: Final = 15.0  # seconds for all hosts to come
_LANGUAGE: Final = "doctor 2"
_CLOCK_LOOKS: Final = 5


class Meeting(Protocol):
    """One host's place among the probes."""

    node: int
    address: str

    def exchange(self, step: str, value: Any, patience: float) -> dict[int, Any]:
        """What each node gave for ``step``, by its number; ``patience`` in seconds. All nodes call."""

    def clocks(self) -> dict[int, float]:
        """Seconds by which each node's clock is ahead of node 0's; known to node 0 only. All nodes call."""


class Hub:
    """Node 0: everyone's messages come here.

    Args:
        port: where to listen; a meeting of one needs none.
        size: hosts that are expected.
        patience: seconds that they have.

    Raises:
        LaunchError: the port cannot be used.
    """

    node = 0

    def __init__(self, port: int, size: int, patience: float = PATIENCE) -> None:
        self.address = "127.0.0.1"
        self.hosts: dict[int, str] = {}
        self._guests: dict[int, Channel] = {}
        self._heard: queue.Queue[tuple[int, float, dict[str, Any] | None]] = queue.Queue()
        if size > 1:
            self._welcome(port, size, time.monotonic() + patience)

    def _welcome(self, port: int, size: int, deadline: float) -> None:
        try:
            door = socket.create_server(("", port), backlog=size)
        except OSError as error:
            raise LaunchError(
                f"master_port: {port} cannot be used on {socket.gethostname()}: {error.strerror}\n"
                "  to do: set master_port to a free port, or leave it out and one is found"
            ) from None
        with door:
            while len(self._guests) < size - 1 and (left := deadline - time.monotonic()) > 0:
                door.settimeout(left)
                with suppress(TimeoutError, Gone, KeyError, OSError):
                    channel = Channel(door.accept()[0])
                    self._admit(channel, channel.receive(2.0), size)

    def _admit(self, channel: Channel, hello: dict[str, Any], size: int) -> None:
        node = hello["node"]
        if hello["language"] != _LANGUAGE or node not in range(1, size) or node in self._guests:
            channel.close()
            return
        channel.send(welcome=node)
        self.address = channel.own_address
        self._guests[node] = channel
        self.hosts[node] = str(hello["host"])
        threading.Thread(target=self._listen, args=(node, channel), daemon=True).start()

    def _listen(self, node: int, channel: Channel) -> None:
        try:
            while True:
                message = channel.receive(None)
                self._heard.put((node, time.monotonic(), message))
        except Gone:
            self._heard.put((node, time.monotonic(), None))

    def exchange(self, step: str, value: Any, patience: float) -> dict[int, Any]:
        given = {0: value}
        deadline = time.monotonic() + patience
        while self._guests.keys() - given.keys():
            heard = self._next(deadline)
            if heard is None:
                break
            node, _, message = heard
            if message.get("step") == step:
                given[node] = message["value"]
        for node in list(self._guests):
            self._tell(node, step=step, values={str(n): v for n, v in given.items()})
        return given

    def clocks(self) -> dict[int, float]:
        ahead = {0: 0.0}
        for node in list(self._guests):
            looks = [look for _ in range(_CLOCK_LOOKS) if (look := self._clock_of(node))]
            if looks:
                ahead[node] = min(looks)[1]  # the quickest answer tells best
        for node in list(self._guests):
            self._tell(node, clock=False)
        return ahead

    def _clock_of(self, node: int) -> tuple[float, float] | None:
        """Seconds of the way there and back, and how far that clock is ahead; None without an answer."""
        asked, here = time.monotonic(), time.time()
        self._tell(node, clock=True)
        while node in self._guests and (heard := self._next(asked + 2.0)) is not None:
            teller, arrived, message = heard
            if teller == node and "time" in message:
                way = arrived - asked
                return way, message["time"] - (here + way / 2)
        return None

    def _next(self, deadline: float) -> tuple[int, float, dict[str, Any]] | None:
        """What is heard next, from whom and when; None when nothing comes until then."""
        while self._guests:
            try:
                node, arrived, message = self._heard.get(
                    timeout=max(0.0, deadline - time.monotonic())
                )
            except queue.Empty:
                return None
            if message is not None:
                return node, arrived, message
            self._guests.pop(node, None)
        return None

    def _tell(self, node: int, **message: Any) -> None:
        if node not in self._guests:
            return  # it has gone meanwhile
        try:
            self._guests[node].send(**message)
        except Gone:
            self._guests.pop(node, None)


class Guest:
    """Any other node.

    Args:
        address: of node 0.
        port: where it listens.
        node: number of this one.
        patience: seconds to go on trying.

    Raises:
        LaunchError: it cannot be reached; says why.
    """

    def __init__(self, address: str, port: int, node: int, patience: float = PATIENCE) -> None:
        self.node = node
        self._hub = _connect(address, port, node, time.monotonic() + patience)
        self.address = self._hub.own_address

    def exchange(self, step: str, value: Any, patience: float) -> dict[int, Any]:
        """Likewise.

        Raises:
            Gone: node 0 has ended.
        """
        self._hub.send(step=step, value=value)
        # Node 0 waits for the slowest before it answers.
        while (message := self._hub.receive(patience * 2 + 5.0)).get("step") != step:
            pass
        return {int(node): value for node, value in message["values"].items()}

    def clocks(self) -> dict[int, float]:
        while self._hub.receive(60.0).get("clock"):
            self._hub.send(time=time.time())
        return {}


def _connect(address: str, port: int, node: int, deadline: float) -> Channel:
    why = "it was not tried"
    while (left := deadline - time.monotonic()) > 0:
        try:
            channel = Channel(socket.create_connection((address, port), timeout=left))
            channel.send(language=_LANGUAGE, node=node, host=socket.gethostname())
            # Node 0 takes one after another.
            if channel.receive(max(2.0, left)).get("welcome") == node:
                return channel
            why = "another program answers there"
        except (OSError, Gone) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        time.sleep(0.3)
    raise LaunchError(
        f"host {socket.gethostname()} (node {node}) cannot reach node 0 at {address}:{port}: {why}\n"
        "  to do: check master_addr and the network interface; open the port in the firewall between the "
        "hosts, or set master_port to one that is open"
    )
