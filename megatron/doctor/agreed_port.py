"""Where probes meet under torchrun, whose agent holds the port that the ranks are told."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Final

from megatron.errors import LaunchError, first_line
from megatron.runtime.ports import free_port

_KEY: Final = "doctor/port"
_PATIENCE: Final = timedelta(seconds=15)


def agreed_port(address: str, port: int, *, is_first: bool) -> int:
    """A free port of node 0's host, which tells it to the others through the agent's store.

    Raises:
        LaunchError: the store cannot be reached.
    """
    # A second of imports, which a probe needs under torchrun alone.
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415

    try:
        store = TCPStore(address, port, is_master=False, timeout=_PATIENCE)
        if is_first:
            store.set(_KEY, str(free_port()))
        return int(store.get(_KEY))
    except RuntimeError as error:
        raise LaunchError(
            f"host {socket.gethostname()} cannot reach torchrun's store at {address}:{port}: "
            f"{first_line(error)}\n"
            "  to do: open that port in the firewall between the hosts"
        ) from None
