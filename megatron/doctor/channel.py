"""A connection between two probes: one message at a time, for which each side waits as long as it likes."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from typing import Any, Final

from megatron.runtime.peer_link import Link, Message

_LARGEST: Final = 64 * 2**20  # bytes of one message
_SEND_S: Final = 10  # seconds that the other end has to take one


class Gone(Exception):
    """The other end has closed, says nothing for too long, or speaks something else."""


class Channel:
    """One end of it. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        # The kernel's own: Python's would hold for both directions.
        limit = struct.pack("ll", _SEND_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._link = Link(connection, _LARGEST)
        self._heard: deque[Message] = deque()

    @property
    def own_address(self) -> str:
        """The address of this host that the other end is connected to."""
        return str(self._link.socket.getsockname()[0])

    def send(self, **message: Any) -> None:
        """Send one message.

        Raises:
            Gone: the other end has gone, or does not take it within 10 s.
        """
        if not self._link.send(**message):
            raise Gone("it does not listen")

    def receive(self, patience: float | None) -> Message:
        """The next message, for which to wait ``patience`` seconds; None waits for ever.

        Raises:
            Gone: none came, or something else did.
        """
        deadline = None if patience is None else time.monotonic() + patience
        while not self._heard:
            if not self._is_heard(None if deadline is None else deadline - time.monotonic()):
                raise Gone("it did not answer in time")
            try:
                messages = self._link.receive()
            except OSError as error:
                raise Gone(error.strerror or str(error)) from None
            except ValueError:
                raise Gone("it speaks another language") from None
            if messages is None:
                raise Gone("it has closed the connection")
            self._heard += messages
        return self._heard.popleft()

    def _is_heard(self, seconds: float | None) -> bool:
        """Whether something has come, or the end, before that many seconds are over."""
        waiting = select.poll()  # select.select knows the first 1024 files of a process only
        waiting.register(self._link.socket, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else max(0.0, seconds) * 1000))

    def close(self) -> None:
        """End the connection."""
        self._link.close()
