"""How much memory this process may still fill."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that can be filled without swapping, page cache that can be dropped included.

    The least of what the machine has and what the control groups of this process allow (containers).
    """
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                room = int(line.split()[1]) * 1024
    return min([room, *_control_group_rooms()])


def _control_group_rooms(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """Bytes that each control group around this process leaves, of either version."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    rooms = []
    for _, controllers, path in lines:
        if controllers == "":  # version 2
            folder, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = folder / path.strip("/")
        for level in (group, *group.parents):
            room = _room_of(level, *names)
            if room is not None:
                rooms.append(room)
    return rooms


def _room_of(group: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    """Bytes that one control group leaves, its page cache included; None without a limit."""
    try:
        limit = (group / limit_name).read_text().strip()
        used = int((group / used_name).read_text())
        statistics = (group / "memory.stat").read_text().split()
    except OSError:  # version 2 says nothing at its root, and no group outside this container
        return None
    if limit == "max":  # version 1 has a number that no machine has
        return None
    cache = int(statistics[statistics.index(cache_name) + 1])
    return max(0, int(limit) - used + cache)
