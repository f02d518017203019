"""Ports of this host, asked of the system by binding them."""

from __future__ import annotations

import socket


def free_port(address: str = "") -> int:
    """A port that nobody has now; ``address`` is the interface on which it is wanted, by default all."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def port_problem(port: int) -> str | None:
    """Why a port cannot be bound now, in the system's words; None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
        return None
