"""Is a folder one for all hosts, as the configuration says, and how soon do they see each other's files?"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, TypedDict

from megatron.doctor.finding import ByHost, Finding, names
from megatron.doctor.folders import INDEX_STORE, RunFolder
from megatron.monitor.units import duration_text
from megatron.runtime.file_systems import existing_part
from megatron.runtime.leftovers import PROBE_PREFIX, list_folder

SEEN_WITHIN: Final = 10.0  # seconds that a network file system gets to show a new name
_SLOW_TO_SHOW: Final = 3.0
_PERIOD: Final = 0.1
# What to set where each host has a disk of its own, by folder.
_PRIVATE: Final = {
    "save": "checkpoint: {use_node_local_storage: true} where each host is to save its part on its own disk",
    INDEX_STORE: "use_shared_fs: false where each host has its own disk, with the data on each",
}

# Of the folders of which it matters: the file that a host has left in each, None where it cannot write.
Left = Mapping[str, str | None]


class SharingFacts(TypedDict):
    """``seen``: seconds until each node's file was seen, by node; those that never were are left out."""

    writes: bool
    seen: dict[str, float]


def leave(folders: Mapping[str, RunFolder]) -> dict[str, str | None]:
    """Make a file with a new name in each of the folders that may be one for all hosts."""
    return {
        key: _leave_in(folder.path) for key, folder in folders.items() if folder.shared is not None
    }


def _leave_in(path: str) -> str | None:
    name = PROBE_PREFIX + uuid.uuid4().hex
    try:
        (existing_part(path) / name).touch()
    except OSError:
        return None
    return name


def take_away(folders: Mapping[str, RunFolder], left: Left) -> None:
    """Remove the files that :func:`leave` has left."""
    for key, name in left.items():
        if name is not None:
            with suppress(
                OSError
            ):  # at worst an empty file stays, which the next builder tidies up
                (existing_part(folders[key].path) / name).unlink()


def look(
    folders: Mapping[str, RunFolder], left: Mapping[int, Left], node: int
) -> dict[str, SharingFacts]:
    """What this host, number ``node``, sees of the files that all nodes have ``left``."""
    found: dict[str, SharingFacts] = {}
    for key, mine in left.get(node, {}).items():
        wanted = {
            other: name
            for other, theirs in left.items()
            if other != node and (name := theirs.get(key)) is not None
        }
        patience = SEEN_WITHIN if folders[key].shared else SEEN_WITHIN / 5
        seen = watch(folders[key].path, wanted, patience)
        found[key] = {"writes": mine is not None, "seen": seen}
    return found


def watch(path: str, wanted: Mapping[int, str], patience: float = SEEN_WITHIN) -> dict[str, float]:
    """Seconds until each node's file, ``wanted`` by node, is listed in what exists of ``path``."""
    start = time.monotonic()
    place, seen = existing_part(path), dict[str, float]()
    while len(seen) < len(wanted):
        there = list_folder(place)
        passed = time.monotonic() - start
        seen |= {
            str(node): passed
            for node, name in wanted.items()
            if name in there and str(node) not in seen
        }
        if passed > patience:
            break
        time.sleep(_PERIOD)
    return seen


def judge(
    key: str, folder: RunFolder, hosts: ByHost[SharingFacts], nodes: ByHost[int]
) -> Iterator[Finding]:
    """Whether ``folder`` is one for all hosts, as the configuration says, and how soon a file is seen.

    ``nodes``: the number of each host.
    """
    writers = [host for host, facts in hosts.items() if facts["writes"]]
    if len(hosts) < 2 or not writers:
        return
    blind = {
        host: unseen
        for host, facts in hosts.items()
        if (unseen := [w for w in writers if w != host and str(nodes[w]) not in facts["seen"]])
    }
    seeing = [host for host, facts in hosts.items() if facts["seen"]]
    what = f"{key} {folder.path}"
    if folder.shared and blind:
        made_by = names(next(iter(blind.values()))) if len(blind) == 1 else "another host"
        yield Finding(
            "sharing",
            "error",
            f"{what}: not one folder: {names(list(blind))} did not see a file that {made_by} made, within "
            f"{duration_text(SEEN_WITHIN)}",
            _PRIVATE[key] + "; else mount the same file system at this path",
        )
    elif not folder.shared and seeing and key == "save":
        yield Finding(
            "sharing",
            "error",
            f"{what}: one folder for several hosts ({names(seeing)} saw what others made), but "
            "use_node_local_storage: true says that each has its own",
            "use_node_local_storage: false, or set save to a folder on each host's own disk",
        )
    elif blind:
        yield Finding("sharing", "ok", f"{what}: a folder of its own on each host")
    else:
        yield _one_folder(what, hosts, folder)


def _one_folder(what: str, hosts: ByHost[SharingFacts], folder: RunFolder) -> Finding:
    slowest = max(seconds for facts in hosts.values() for seconds in facts["seen"].values())
    is_slow = slowest > _SLOW_TO_SHOW
    note = "" if folder.shared else "; use_shared_fs: true would build the index once"
    return Finding(
        "sharing",
        "warning" if is_slow else "ok",
        f"{what}: one folder for all hosts; a new file is seen within {duration_text(slowest)}{note}",
        "mount it with a shorter attribute cache (NFS: actimeo=1 or lookupcache=positive)"
        if is_slow
        else "",
    )
