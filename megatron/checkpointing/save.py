"""Save a checkpoint so that it is there whole, or not at all.

In order, every step agreed on by all ranks before the next begins:

1. rank 0 clears what killed saves left and makes ``<root>/.tmp-global_step<N>/global_step<N>``;
2. every rank sees that folder, then writes its shards into it and flushes them;
3. rank 0 writes the configuration files, and the manifest last;
4. rank 0 renames the folder to ``<root>/global_step<N>`` and then replaces ``<root>/latest``;
5. only now are old checkpoints removed.

With node-local storage the first process of each node does all that on its node's disk, and each
disk gets the same manifest. A kill at any moment leaves the checkpoint that ``latest`` names whole.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from megatron.checkpointing import folders
from megatron.checkpointing.deepspeed_files import engine_facts, write_shards
from megatron.checkpointing.folders import CONFIG_FOLDER, EFFECTIVE_CONFIG_NAME
from megatron.checkpointing.manifest import Manifest
from megatron.checkpointing.publishing import (
    Place,
    clean_up,
    finish,
    prepare,
    publish,
    remove_old,
    time_now,
    versions,
    wait_until_visible,
)
from megatron.checkpointing.sharing import check_sharing
from megatron.checkpointing.together import together
from megatron.errors import CheckpointError
from megatron.runtime.durable import (
    sync_folder,
    temporary_name,
    write_file,
)
from megatron.runtime.file_lock import try_lock
from megatron.runtime.stock_deepspeed import Engine
from megatron.runtime.world import World

LOCK_NAME = ".lock"


class ConfigText(Protocol):
    """A configuration file as it was read."""

    @property
    def path(self) -> object: ...

    @property
    def text(self) -> str: ...


def save_checkpoint(
    engine: Engine,
    *,
    save_dir: str | Path,
    step: int,
    state: Mapping[str, Any],
    world: World,
    config_files: Iterable[ConfigText],
    config_flat: Mapping[str, Any],
    layout: Mapping[str, Any],
    node_local: bool = False,
    keep_last: int | None = None,
    no_save_optim: bool = False,
    config_hash: str | None = None,
) -> Path:
    """Write the checkpoint of ``step`` under ``save_dir``. All ranks call this.

    Args:
        engine: DeepSpeed's engine.
        save_dir: the root of the run's checkpoints; made when missing.
        step: optimizer steps done.
        state: what a resume needs beside the engine's state, JSON values only; rank 0's is kept.
        world: this process's place.
        config_files: the configuration as the user wrote it, copied into ``configs/``.
        config_flat: the configuration as it was understood.
        layout: how the run is spread over ranks.
        node_local: each node writes to its own disk; DeepSpeed's
            ``checkpoint: {use_node_local_storage: true}`` must be set as well.
        keep_last: remove all but so many checkpoints, after this one is complete; None keeps all.
        no_save_optim: leave the optimizer's state out.
        config_hash: hash of the configuration; by default that of ``config_flat``.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: on every rank, with the first failing rank's words, when any rank could not
            write. Nothing half-written stays, and earlier checkpoints are as they were.
    """
    place = Place(Path(os.path.abspath(save_dir)), step)
    _refuse_patterns(place.root)
    leader = world.is_local_first if node_local else world.is_first
    flat_text = effective_text(config_flat)
    try:
        together(world, (lambda: prepare(place)) if leader else None)
        together(world, lambda: wait_until_visible(place.unfinished, None))
        written = together(world, lambda: _write_part(engine, place, world, not no_save_optim))
        configs = together(
            world, (lambda: _write_configs(place, config_files, flat_text)) if leader else None
        )
        manifest = Manifest(
            step=step,
            state=dict(state),
            layout=dict(layout),
            engine=engine_facts(engine, world.size),
            config_hash=config_hash or hashlib.sha256(flat_text.encode()).hexdigest(),
            versions=versions(),
            has_optimizer=not no_save_optim,
            node_local=node_local,
            disks=_disks(written, configs, node_local),
            created=time_now(),
        )
        manifest = world.broadcast(manifest)
        files = manifest.files_of(world.node_rank)
        together(world, (lambda: finish(place, manifest, files)) if leader else None)
        together(world, (lambda: publish(place)) if leader else None)
    except CheckpointError as error:
        text = _failure_text(place, error)
        text += clean_up(place) if leader else ""
        raise CheckpointError(text, everywhere=True) from error
    if leader and keep_last is not None:
        for folder in folders.outdated(place.root, step, keep_last):
            remove_old(folder)
    world.barrier()
    return place.final


def check_save_folder(save_dir: str | Path, *, world: World, node_local: bool = False) -> None:
    """Find out before the first step, not at the first save, that ``save_dir`` cannot be written to.

    All ranks call this. It makes the folder and leaves nothing in it.

    Raises:
        CheckpointError: on every rank.
    """
    root = Path(os.path.abspath(save_dir))
    _refuse_patterns(root)
    leader = world.is_local_first if node_local else world.is_first

    def try_it() -> None:
        root.mkdir(parents=True, exist_ok=True)
        probe = temporary_name(root / "can-be-written")
        write_file(probe, b"soon removed")
        probe.unlink()

    try:
        together(world, try_it if leader else None)
    except CheckpointError as error:
        raise CheckpointError(
            f"save: no checkpoint can be written under {root}\n  found: {error}\n"
            "  to do: make room and allow writing there, or choose another `save`",
            everywhere=True,
        ) from error


@contextmanager
def claimed_save_folder(
    save_dir: str | Path, *, world: World, node_local: bool = False
) -> Iterator[None]:
    """Keep other jobs out of ``save_dir`` for the length of the block. All ranks call this.

    First of all the nodes find out whether it is one folder for them all, or one on each one's disk: a run on
    several hosts of which nobody said the right thing would learn it at its first save.

    Two jobs that save into one folder would mix their files. The lock is the system's: it ends with
    the process, however that ends. A file system without locks, or one that cannot be written, lets
    everybody in.

    Raises:
        CheckpointError: on every rank, when another job holds the folder, or the nodes share it and should
            not, or the other way round.
    """
    root = Path(os.path.abspath(save_dir))
    check_sharing(root, world, node_local=node_local)
    leader = world.is_local_first if node_local else world.is_first
    held: list[int] = []

    path = root / LOCK_NAME

    def claim() -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return  # nobody can save here: check_save_folder says so where a save is due
        try:
            _lock(lock, path)
        except BaseException:
            os.close(lock)
            raise
        held.append(lock)

    try:
        try:
            together(world, claim if leader else None, expected=(OSError, CheckpointError))
        except CheckpointError as error:
            raise CheckpointError(
                f"save: {root} cannot be taken by this run\n  found: {error}\n"
                "  to do: wait for the other job, end it, or choose another `save`; if its host is "
                f"gone, remove {LOCK_NAME}",
                everywhere=True,
            ) from error
        yield
    finally:
        for lock in held:
            # While it is still held: whoever opened this file meanwhile finds out that it is gone. One that
            # stays does no harm: nobody holds it.
            with suppress(OSError):
                path.unlink()
            os.close(lock)


def _lock(descriptor: int, path: Path) -> None:
    """Lock the open file at ``path`` for this process alone, or say that another one has it."""
    if not try_lock(descriptor):
        raise CheckpointError(f"another job holds {path}")


def _refuse_patterns(root: Path) -> None:
    if glob.escape(str(root)) != str(root):
        raise CheckpointError(
            f"save: {root}\n  found: one of the characters [ * ? in the path\n"
            "  expected: none, because DeepSpeed searches folders by pattern\n"
            "  to do: use another folder",
            everywhere=True,
        )


def _write_part(
    engine: Engine, place: Place, world: World, with_optimizer: bool
) -> tuple[int, dict[str, int]]:
    """Write this rank's shards. Returns its node and its files: name → bytes."""
    files = write_shards(
        engine,
        place.unfinished,
        client_state={"iteration": place.step},  # GPT-NeoX looks for it there
        with_optimizer=with_optimizer,
    )
    return world.node_rank, files


def _write_configs(
    place: Place, config_files: Iterable[ConfigText], flat_text: str
) -> dict[str, int]:
    """Write the configuration into the folder. Returns its files: path inside it → bytes."""
    texts = {EFFECTIVE_CONFIG_NAME: flat_text}
    for file in config_files:
        path = Path(str(file.path))
        name, number = path.name, 1
        while name in texts:  # two folders may hold files of one name
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        texts[name] = file.text
    return write_configs(place.unfinished, texts)


def effective_text(flat: Mapping[str, Any]) -> str:
    """The content of :data:`EFFECTIVE_CONFIG_NAME`: the configuration as it was understood."""
    return json.dumps(flat, indent=1, sort_keys=True, default=str)


def write_configs(checkpoint: Path, texts: Mapping[str, str]) -> dict[str, int]:
    """Write files of configuration, by name. Returns path inside ``checkpoint`` → bytes."""
    folder = checkpoint / CONFIG_FOLDER
    folder.mkdir()
    sizes = {
        f"{CONFIG_FOLDER}/{name}": write_file(folder / name, text.encode())
        for name, text in texts.items()
    }
    sync_folder(folder)
    return sizes


def _disks(
    written: list[tuple[int, dict[str, int]] | None],
    configs: list[dict[str, int] | None],
    node_local: bool,
) -> list[dict[str, int]]:
    """The files of each disk, from what each rank reports: (its node, its shards) and its configs."""
    disks: dict[int, dict[str, int]] = {}
    for report, config_sizes in zip(written, configs, strict=True):
        assert report is not None  # every rank writes
        node_rank, shards = report
        files = disks.setdefault(node_rank if node_local else 0, {})
        files.update(shards)
        files.update(config_sizes or {})
    return [dict(sorted(disks[node].items())) for node in sorted(disks)]


def _failure_text(place: Place, error: CheckpointError) -> str:
    text = f"the checkpoint of step {place.step} could not be saved under {place.root}"
    text += f"\n  found: {error}"
    try:
        latest = folders.read_latest(place.root)
        free = shutil.disk_usage(place.root).free
    except (OSError, CheckpointError):  # the folder itself is out of reach: `found` says why
        latest, free = None, None
    if free is not None:
        text += f"\n  free there: {free / 2**20:,.1f} MiB"
    text += f"\n  still whole: {latest}" if latest else "\n  no earlier checkpoint is there"
    return text + "\n  to do: make room and allow writing there, or choose another `save`"
