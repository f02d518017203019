"""Which file system a path is on, as the kernel says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, TypedDict

MOUNTS: Final = Path("/proc/self/mountinfo")
# Types that live on another machine, and may be the same on several.
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "glusterfs", "wekafs"}
    | {"9p", "afs", "virtiofs", "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs"}
)
# Types that are one host's own: what is written there is listed at once, and no other host can write it.
_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "tmpfs", "ramfs"}
    | {"overlay"}
)


class FileSystem(TypedDict):
    """``kind`` such as ``ext4`` or ``nfs4``; ``source`` a device or ``server:/path``."""

    kind: str
    source: str
    mounted_at: str


def file_system_of(path: str, table: Path = MOUNTS) -> FileSystem:
    """The mount that ``path``, or what there is of it, lies in.

    The format: proc_pid_mountinfo(5). Of mounts at one place the last one counts.
    """
    real = os.path.realpath(path)
    best: FileSystem = {"kind": "unknown", "source": "unknown", "mounted_at": ""}
    for line in table.read_text().splitlines():
        before, _, after = line.partition(" - ")
        place = _unescaped(before.split()[4])
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best["mounted_at"]):
            kind, source = after.split()[:2]
            best = {"kind": kind, "source": _unescaped(source), "mounted_at": place}
    return best


def is_network(system: FileSystem) -> bool:
    """Whether several hosts may be looking at the same files."""
    return system["kind"] in _NETWORK


def is_of_one_host(path: str, table: Path = MOUNTS) -> bool:
    """Whether ``path`` is surely on a disk of this host alone."""
    try:
        return file_system_of(path, table)["kind"] in _LOCAL
    except OSError:  # no such table on this system
        return False


def existing_part(path: str) -> Path:
    """``path``, or the nearest folder above it that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
