"""The network interface that gloo talks through between hosts.

Gloo takes the address that the host's own name has. Many systems write ``127.0.1.1 NAME`` into
/etc/hosts (Debian's installer does), or know no address for it: gloo then listens where no other host
can reach it. Here the interface is taken at which the hosts have met. NCCL chooses well by itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

import psutil  # type: ignore[import-untyped] # DeepSpeed needs it too

from megatron.runtime.peer_link import is_loopback

_VARIABLE: Final = "GLOO_SOCKET_IFNAME"


def choose_interface(address: str | None, env: MutableMapping[str, str] | None = None) -> None:
    """Have gloo use the interface with ``address``, unless the user or the host's name says which.

    Args:
        address: of this host, at which other hosts reach it; None if that is not known.
        env: environment of this process.
    """
    env = os.environ if env is None else env
    if address is None or is_loopback(address) or env.get(_VARIABLE) or not _name_stays_here():
        return
    name = interface_of(address)
    if name is not None:
        env[_VARIABLE] = name


def _name_stays_here() -> bool:
    """Whether the first address of this host's name that can be bound leads to no other host."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:  # another host's, or of a protocol that is switched off
                continue
            return is_loopback(str(address[0]))
    return True


def interface_of(address: str) -> str | None:
    """The name of the interface with this IP address; None where there is none."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address.partition("%")[0] for each in found):
            return str(name)
    return None
