"""The folder that a run saves into: can it be written, is it this run's alone, and do the nodes share it?

Asked before anything slow is done.
"""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megatron.checkpointing.together import together
from megatron.errors import CheckpointError
from megatron.runtime.durable import write_file
from megatron.runtime.file_lock import try_lock
from megatron.runtime.fs_probe import look_around
from megatron.runtime.leftovers import PROBE_PREFIX, remove_stale
from megatron.runtime.world import World

LOCK_NAME = ".lock"


def check_save_folder(save_dir: str | Path, *, world: World) -> None:
    """Find out before the first step, not at the first save, that ``save_dir`` cannot be written to.

    Of each node one process tries: where all see one folder, some may see it read-only, or have no right
    or no room left there. All ranks call this. It makes the folder and leaves nothing in it.

    Raises:
        CheckpointError: on every rank.
    """
    root = Path(os.path.abspath(save_dir))
    refuse_patterns(root)
    try:
        together(world, (lambda: _try_to_write(root)) if world.is_local_first else None)
    except CheckpointError as error:
        raise CheckpointError(
            f"save: no checkpoint can be written under {root}\n  found: {error}\n"
            "  to do: make room and allow writing there, or choose another `save`",
            everywhere=True,
        ) from error


def _try_to_write(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    probe = root / (PROBE_PREFIX + uuid.uuid4().hex)  # all nodes do so at once
    try:
        write_file(probe, b"soon removed")
    except OSError:
        with suppress(OSError):  # on a full disk the name is there
            probe.unlink()
        raise
    probe.unlink()


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
    _check_sharing(root, world, node_local=node_local)
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
            if not try_lock(lock):
                raise CheckpointError(f"another job holds {path}")
        except BaseException:
            os.close(lock)
            raise
        held.append(lock)
        with suppress(OSError):  # of an earlier start that was killed; at worst it stays
            os.utime(lock)
            remove_stale(root, now=os.fstat(lock).st_mtime)

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


def refuse_patterns(root: Path) -> None:
    """Raise a :class:`CheckpointError` where DeepSpeed would take a folder's name for a pattern."""
    if glob.escape(str(root)) != str(root):
        raise CheckpointError(
            f"save: {root}\n  found: one of the characters [ * ? in the path\n"
            "  expected: none, because DeepSpeed searches folders by pattern\n"
            "  to do: use another folder",
            everywhere=True,
        )


def _check_sharing(root: Path, world: World, *, node_local: bool) -> None:
    """Compare what the nodes see under ``root`` with what the configuration says. All ranks call this.

    With one node, or where nobody can write, nothing is asked.

    Args:
        root: where checkpoints go; made when missing.
        world: all ranks.
        node_local: ``use_node_local_storage``, each node is to have its own.

    Raises:
        CheckpointError: on every rank: it is the other way round.
    """
    if world.num_nodes == 1:
        return
    sight = look_around(root, world, is_shared=not node_local, make_parents=True)
    if not node_local and sight.blind:
        raise CheckpointError(
            f"save: {root} is not the same folder on all nodes\n"
            f"  found: {sight.blind} cannot see a file that node 0 ({sight.hosts[0]}) has written there\n"
            "  expected: one shared file system, because use_node_local_storage is false\n"
            "  to do: set checkpoint: {use_node_local_storage: true} to save each node's part on its own "
            "disk; else choose a `save` that all nodes see",
            everywhere=True,
        )
    if node_local and sight.sharing:
        raise CheckpointError(
            f"save: {root} is one folder for several nodes\n"
            f"  found: {sight.names(sight.sharing)} see what other nodes have written there\n"
            "  expected: a disk of each node's own, because use_node_local_storage is true\n"
            "  to do: set use_node_local_storage: false, or choose a `save` on the nodes' own disks",
            everywhere=True,
        )
