"""Where a run writes: may it, and is there room."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from megatron.data.sources import all_paths, store_of
from megatron.doctor.finding import ByHost, Finding
from megatron.doctor.needs import Needs
from megatron.monitor.units import bytes_text
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.file_systems import FileSystem, existing_part, file_system_of
from megatron.runtime.leftovers import PROBE_PREFIX

INDEX_STORE: Final = "index store"


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


def folders_of(args: NeoXArgs) -> dict[str, RunFolder]:
    """The folders that a run of ``args`` writes to, by the key that moves them."""
    found: dict[str, RunFolder] = {}
    settings = args.checkpointing
    if settings.save:
        found["save"] = RunFolder(settings.save, not settings.use_node_local_storage)
    paths = {
        "data_local_cache_dir": args.data.data_local_cache_dir,
        "tensorboard_dir": args.logging.tensorboard_dir,
        "log_dir": args.logging.log_dir,
    }
    found |= {key: RunFolder(path) for key, path in paths.items() if path}
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
