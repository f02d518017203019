"""The network interface that gloo talks through between hosts.

Gloo takes the address that the host's own name has. Many systems write ``127.0.1.1 NAME`` into
/etc/hosts (Debian's installer does), or know no address for it: gloo then listens where no other host
can reach it. Here the interface is taken at which the hosts have met. NCCL chooses well by itself.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from megatron.runtime.peer_link import is_loopback

_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
_IFREQ: Final = struct.Struct("16s4s4s232s")  # name; family and port; IPv4 address; the rest
_IPV6_TABLE: Final = Path("/proc/net/if_inet6")


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
    """The name of the interface with this IP address; None where there is none (or on no Linux)."""
    wanted = address.partition("%")[0]
    if ":" in wanted:
        packed = socket.inet_pton(socket.AF_INET6, wanted).hex()
        rows = _IPV6_TABLE.read_text().splitlines() if _IPV6_TABLE.exists() else []
        return next((row.split()[-1] for row in rows if row.startswith(packed)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(
                    probe.fileno(), _SIOCGIFADDR, _IFREQ.pack(name.encode(), b"", b"", b"")
                )
            except OSError:  # it has no such address
                continue
            if socket.inet_ntoa(_IFREQ.unpack(answer)[2]) == wanted:
                return name
    return None
