"""Where a run writes: may it, is there room, and do the hosts see each other's files, how soon."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypedDict

from megatron.data.sources import all_paths, store_of
from megatron.doctor.file_systems import FileSystem, existing_part, file_system_of
from megatron.doctor.finding import ByHost, Finding, names
from megatron.doctor.needs import Needs
from megatron.monitor.units import bytes_text, duration_text
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.fs_barrier import PROBE_PREFIX, list_folder

INDEX_STORE: Final = "index store"
# What to set where each host has a disk of its own, by folder.
_PRIVATE: Final = {
    "save": "checkpoint: {use_node_local_storage: true} where each host is to save its part on its own disk",
    INDEX_STORE: "use_shared_fs: false where each host has its own disk, with the data on each",
}
SEEN_WITHIN: Final = 10.0  # seconds that a network file system gets to show a new name
_SLOW_TO_SHOW: Final = 3.0
_PERIOD: Final = 0.1


@dataclass(frozen=True)
class RunFolder:
    """A folder that a run writes to.

    Attributes:
        path: as the configuration has it.
        shared: whether it is to be one folder for all hosts; None where that does not matter.
    """

    path: str
    shared: bool | None = None


class FolderFacts(TypedDict):
    """``key`` names it in the configuration; ``place`` is what exists of ``path``.

    ``problem``: why nothing can be written; None if it can. ``free``: bytes.
    """

    key: str
    path: str
    place: str
    problem: str | None
    free: int
    system: FileSystem


class SharingFacts(TypedDict):
    """``seen``: seconds until each node's file was seen, by node; those that never were are left out."""

    writes: bool
    seen: dict[str, float]


def folders_of(args: NeoXArgs) -> dict[str, RunFolder]:
    """The folders that a run of ``args`` writes to, by the key that moves them."""
    paths = {
        "data_local_cache_dir": args.data.data_local_cache_dir,
        "tensorboard_dir": args.logging.tensorboard_dir,
        "log_dir": args.logging.log_dir,
    }
    found = {key: RunFolder(path) for key, path in paths.items() if path}
    settings = args.checkpointing
    if settings.save:
        found["save"] = RunFolder(settings.save, not settings.use_node_local_storage)
    if all_paths(args.data):
        found[INDEX_STORE] = RunFolder(str(store_of(args.data).root), args.data.use_shared_fs)
    return found


def look(folders: Mapping[str, RunFolder]) -> list[FolderFacts]:
    """Each of ``folders`` on this host. Nothing is left in them."""
    return [_look_at(key, folder.path) for key, folder in folders.items()]


def _look_at(key: str, path: str) -> FolderFacts:
    place = existing_part(path)
    problem = None
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=PROBE_PREFIX) as file:
            file.write(b"doctor")
            file.flush()
    except OSError as error:
        problem = error.strerror or str(error)
    space = os.statvfs(place)
    return {
        "key": key,
        "path": os.path.abspath(path),
        "place": str(place),
        "problem": problem,
        "free": space.f_bavail * space.f_frsize,
        "system": file_system_of(str(place)),
    }


def leave(path: str) -> str | None:
    """Make a file with a new name in what exists of ``path``; None where that cannot be written."""
    name = PROBE_PREFIX + uuid.uuid4().hex
    try:
        (existing_part(path) / name).touch()
    except OSError:
        return None
    return name


def take_away(path: str, name: str) -> None:
    """Remove a file that :func:`leave` has left."""
    with suppress(OSError):  # at worst an empty file stays, which the next builder tidies up
        (existing_part(path) / name).unlink()


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
    hosts: ByHost[Sequence[FolderFacts]], needs: Needs | None, folders: Mapping[str, RunFolder]
) -> Iterator[Finding]:
    """Those of ``folders`` that cannot be written, or have no room for a checkpoint."""
    first = next(iter(hosts))
    for key, folder in folders.items():
        found = {h: f for h, each in hosts.items() for f in each if f["key"] == key}
        if key == INDEX_STORE and folder.shared:  # the first host builds the index for all
            found = {host: f for host, f in found.items() if host == first}
        checkpoint = needs.checkpoint_bytes if needs is not None and key == "save" else None
        if checkpoint is not None and not folder.shared:
            checkpoint //= len(hosts)  # each has its part
        yield from _judge_folder(key, found, checkpoint)


def _judge_folder(
    key: str, found: ByHost[FolderFacts], checkpoint: int | None
) -> Iterator[Finding]:
    """``checkpoint``: bytes of one, or of a host's part, that goes there."""
    closed = {host: facts for host, facts in found.items() if facts["problem"]}
    for host, facts in closed.items():
        where = facts["path"] + (
            "" if facts["place"] == facts["path"] else f" (in {facts['place']})"
        )
        yield Finding(
            "folders",
            # What has been built already is read only.
            "warning" if key == INDEX_STORE else "error",
            f"{host}: {key} {where}: cannot be written: {facts['problem']}",
            "set index_cache_dir to a folder that can be written, or build the index from where it can: "
            "tools/datasets/build_index.py"
            if key == INDEX_STORE
            else f"give this user the right to write there (ls -ld, mount), or set {key} elsewhere",
        )
    open_ones = {host: facts for host, facts in found.items() if host not in closed}
    if not open_ones:
        return
    if checkpoint is not None:
        yield from _judge_room(open_ones, checkpoint)
        return
    least = min(facts["free"] for facts in open_ones.values())
    any_facts = next(iter(open_ones.values()))
    has_room = least > 2**30
    yield Finding(
        "folders",
        "ok" if has_room else "warning",
        f"{key} {any_facts['path']}: {bytes_text(least)} free ({any_facts['system']['kind']})",
        "" if has_room else f"make room, or set {key} elsewhere",
    )


def _judge_room(found: ByHost[FolderFacts], part: int) -> Iterator[Finding]:
    for host, facts in found.items():
        if facts["free"] < 2 * part:
            yield Finding(
                "folders",
                "error" if facts["free"] < part else "warning",
                f"{host}: save {facts['path']}: {bytes_text(facts['free'])} free, a checkpoint takes about "
                f"{bytes_text(part)}",
                "make room, set save elsewhere or keep_last_n_checkpoints; no_save_optim: true saves "
                "weights alone",
            )
            return
    host, facts = min(found.items(), key=lambda each: each[1]["free"])
    yield Finding(
        "folders",
        "ok",
        f"save {facts['path']}: {bytes_text(facts['free'])} free ({facts['system']['kind']}), a checkpoint "
        f"takes about {bytes_text(part)}",
    )


def judge_sharing(
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
        yield Finding(
            "sharing",
            "error",
            f"{what}: not one folder: {names(list(blind))} did not see a file that "
            f"{names(next(iter(blind.values())))} made, within {duration_text(SEEN_WITHIN)}",
            _PRIVATE[key] + "; else mount the same file system at this path",
            "data",
        )
    elif not folder.shared and seeing and key == "save":
        yield Finding(
            "sharing",
            "error",
            f"{what}: one folder for several hosts ({names(seeing)} saw what others made), but "
            "use_node_local_storage: true says that each has its own",
            "use_node_local_storage: false, or set save to a folder on each host's own disk",
            "data",
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
