"""Who the hosts are: names, addresses, clocks."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, TypedDict

from megatron.doctor.finding import ByHost, Finding, groups, names
from megatron.monitor.units import duration_text

_CLOCK_DOUBT: Final = 2.0  # seconds: files seem to come from the future
_CLOCK_WRONG: Final = 60.0  # certificates and tickets of a cluster's services fail
_INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class HostFacts(TypedDict):
    """``address`` is the one that the others see, ``resolves_to`` what the host's name means to itself.

    ``chosen`` are interfaces that the environment names for collectives, by variable.
    """

    name: str
    address: str
    resolves_to: str | None
    interfaces: list[str]
    chosen: dict[str, str]


def look(address: str, environment: Mapping[str, str] | None = None) -> HostFacts:
    """This host; ``address`` is what its probe has been reached by."""
    env = os.environ if environment is None else environment
    name = socket.gethostname()
    resolved = None
    with suppress(OSError):
        resolved = socket.gethostbyname(name)
    return {
        "name": name,
        "address": address,
        "resolves_to": resolved,
        "interfaces": [name for _, name in socket.if_nameindex()],
        "chosen": {key: env[key] for key in _INTERFACE_VARIABLES if env.get(key)},
    }


def judge(hosts: ByHost[HostFacts]) -> Iterator[Finding]:
    """Names that two hosts have, addresses that lead nowhere, interfaces that are not there."""
    same = [
        name
        for name, found in groups({label: f["name"] for label, f in hosts.items()}).items()
        if len(found) > 1
    ]
    for name in same:
        yield Finding(
            "hosts",
            "warning",
            f"several hosts are called {name}",
            "give each its own name (hostnamectl set-hostname), or see whether one was started twice",
        )
    if not same:
        yield Finding("hosts", "ok", f"{len(hosts)} host(s): {names(list(hosts))}")
    yield from _judge_addresses(hosts)


def _judge_addresses(hosts: ByHost[HostFacts]) -> Iterator[Finding]:
    if len(hosts) == 1:
        return
    for label, facts in hosts.items():
        for variable, wanted in facts["chosen"].items():
            if not _is_there(wanted, facts["interfaces"]):
                yield Finding(
                    "hosts",
                    "error",
                    f"{label}: {variable}={wanted}, but its interfaces are {names(facts['interfaces'])}",
                    f"set {variable} to one of them, or take it out of the environment",
                )
        if "GLOO_SOCKET_IFNAME" in facts["chosen"] or _is_loopback(facts["address"]):
            continue
        resolved = facts["resolves_to"]
        if resolved is None or _is_loopback(resolved):
            means = "no address" if resolved is None else f"{resolved}, itself only"
            yield Finding(
                "hosts",
                "ok",
                f"{label}: its own name means {means}; a run takes the interface of {facts['address']}, "
                "where the others reach it",
            )


def _is_there(wanted: str, interfaces: list[str]) -> bool:
    """NCCL's forms too: ``=eth0`` is that one, ``^lo`` all but those, ``eth`` a beginning."""
    if wanted.startswith("^"):
        return True
    return any(
        interface.startswith(name.lstrip("="))
        for name in wanted.split(",")
        for interface in interfaces
    )


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def judge_clocks(ahead: ByHost[float]) -> Iterator[Finding]:
    """``ahead``: seconds by which each clock is ahead of the first host's."""
    first = next(iter(ahead))
    wrong = {host: by for host, by in ahead.items() if abs(by) > _CLOCK_DOUBT}
    for host, by in wrong.items():
        side = "ahead of" if by > 0 else "behind"
        yield Finding(
            "hosts",
            "error" if abs(by) > _CLOCK_WRONG else "warning",
            f"{host}: its clock is {duration_text(abs(by))} {side} that of {first}",
            "set it by NTP (chronyc makestep, timedatectl set-ntp true)",
        )
    if not wrong and len(ahead) > 1:
        most = max(abs(by) for by in ahead.values())
        yield Finding("hosts", "ok", f"clocks within {duration_text(most)}")
