"""Messages over a socket: JSON behind its length. Nothing that arrives is ever run or unpickled."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

_LENGTH: Final = struct.Struct(">I")
_LARGEST: Final = 64 * 1024 * 1024  # bytes of one message


class Gone(Exception):
    """The other end has closed, says nothing for too long, or speaks something else."""


class Channel:
    """One end of a connection between two probes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def own_address(self) -> str:
        """The address of this host that the other end is connected to."""
        return str(self._socket.getsockname()[0])

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message.

        Raises:
            Gone: the other end does not take it within 10 s.
        """
        content = json.dumps(message, separators=(",", ":")).encode()
        self._socket.settimeout(10.0)
        try:
            self._socket.sendall(_LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise Gone(str(error)) from None

    def receive(self, patience: float | None) -> dict[str, Any]:
        """The next message, for which to wait ``patience`` seconds; None waits for ever.

        Raises:
            Gone: none came, or something else did.
        """
        deadline = None if patience is None else time.monotonic() + patience
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if size > _LARGEST:
            raise Gone("it speaks another language")
        try:
            message = json.loads(self._exactly(size, deadline))
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Gone("it speaks another language")
        return message

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        content = b""
        while len(content) < size:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Gone("it did not answer in time")
            self._socket.settimeout(left)
            try:
                piece = self._socket.recv(size - len(content))
            except TimeoutError:
                raise Gone("it did not answer in time") from None
            except OSError as error:
                raise Gone(str(error)) from None
            if not piece:
                raise Gone("it has closed the connection")
            content += piece
        return content
