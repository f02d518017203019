"""Hostfiles: one ``name slots=N`` per line, as DeepSpeed and Open MPI write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from megatron.errors import LaunchError

# One name: MPI's "node1:8" and Slurm's "node[1-4]" would be taken for a host that is called so.
_LINE = re.compile(r"(?P<name>[^\s=:,\[\]]+)(\s+slots\s*=\s*(?P<slots>\S+))?")


@dataclass(frozen=True)
class Host:
    """One host, and how many processes it takes (None: as many as it has devices)."""

    name: str
    slots: int | None


def read_hostfile(path: str) -> list[Host]:
    """The hosts of a file, in order. Empty lines and ``#`` comments are skipped.

    Raises:
        LaunchError: the file is missing or names no host, or a line is none, or names a host again.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LaunchError(
            f"hostfile: {Path(path).absolute()}: cannot be read: {reason}\n"
            "  to do: mend the path, or take hostfile out of the configuration to run on this host"
        ) from None
    hosts: dict[str, tuple[int, Host]] = {}
    for number, line in enumerate(lines, start=1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        host = _host(text, f"{path}:{number}")
        if host.name in hosts:
            raise LaunchError(
                f"{path}:{number}: {host.name} stands on line {hosts[host.name][0]} already"
            )
        hosts[host.name] = (number, host)
    if not hosts:
        raise LaunchError(f"hostfile: {path} names no host: expected lines such as 'node1 slots=8'")
    return [host for _, host in hosts.values()]


def _host(text: str, where: str) -> Host:
    match = _LINE.fullmatch(text)
    if match is None:
        raise LaunchError(f"{where}: found {text!r}, expected a line such as 'node1 slots=8'")
    slots = match["slots"]
    if slots is None:
        return Host(match["name"], None)
    if not slots.isdecimal() or int(slots) == 0:
        raise LaunchError(f"{where}: slots={slots}: expected a whole number from 1 on")
    return Host(match["name"], int(slots))
