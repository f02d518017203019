"""Find the checkpoint that a run shall start from, and make sure that it is whole.

*Nothing there yet* (no folder, or one without checkpoints) is None: a fresh start. *Something
there, but not whole* is an error: a run that silently began anew would throw the work away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megatron.checkpointing import folders
from megatron.checkpointing.manifest import (
    MANIFEST_NAME,
    Manifest,
    differences,
    read_manifest,
)
from megatron.checkpointing.parts import Reader
from megatron.checkpointing.tensor_files import is_weights_file
from megatron.checkpointing.together import together
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.runtime.durable import TEMPORARY_PREFIX
from megatron.runtime.world import World

log = get_logger(__name__)


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that is there.

    Attributes:
        path: its folder.
        step: optimizer steps that its weights have taken.
        manifest: None for a foreign checkpoint, from which only weights are read.
        notes: what a person should know about the choice, a line each.
    """

    path: Path
    step: int
    manifest: Manifest | None
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def state(self) -> dict[str, Any]:
        """The run's state as it was saved; empty for a foreign checkpoint."""
        return dict(self.manifest.state) if self.manifest else {}


def find_checkpoint(
    load_dir: str | Path,
    iteration: int | None = None,
    *,
    world: World | None = None,
    foreign: bool = False,
    neox: bool = False,
    continues: bool = False,
    node_local: bool = False,
) -> CheckpointInfo | None:
    """The checkpoint that ``<load_dir>/latest`` names, or that of step ``iteration``.

    With a ``world``, all ranks call this; the first process of each node looks, and all must see
    the same. What is worth knowing about the choice is logged.

    Args:
        load_dir: the root of a run's checkpoints.
        iteration: a step to take instead of the latest.
        world: this process's place; None looks alone.
        foreign: accept any folder without manifest for its weights.
        neox: accept one that GPT-NeoX wrote, but not one of ours that has lost its manifest.
        continues: the run goes on from it, and needs the files of all ranks; else weights will do.
        node_local: each node has its own part of it on its own disk.

    Returns:
        The checkpoint, checked against its manifest; None when nothing is there yet.

    Raises:
        CheckpointError: something is there, but it is not whole, or not the same on all nodes.
    """
    world = world or World()
    root = Path(load_dir).absolute()
    reader = Reader(world.node_rank, world.num_nodes, node_local, continues)
    accepts = _any_folder if foreign else is_neox_folder if neox else _no_folder
    name = f"node {world.node_rank}, {world.hostname}"

    def look(step: int | None) -> list[_Seen]:
        def see() -> _Seen:
            return _Seen(name, _look(root, step, reader, accepts), _steps_with_manifest(root))

        found = together(world, see if world.is_local_first else None)
        return [seen for seen in found if seen is not None]

    seen = look(iteration)
    behind = _step_behind(seen) if node_local else None
    if behind is not None:
        if world.is_first:
            log.warning("%s", _killed_in_publishing(root, seen, behind))
        seen = look(behind)
    if len({each.step for each in seen}) > 1:
        raise CheckpointError(_not_alike(root, seen, node_local=node_local), everywhere=True)
    info = seen[0].info
    if info is None:
        return None
    if world.is_first:
        for note in info.notes:
            log.warning("%s", note)
    return replace(info, path=root / info.path.name)  # each node's own disk may be elsewhere


@dataclass(frozen=True)
class _Seen:
    """What one node sees: the checkpoint to use, and the ``steps`` of all that could be one."""

    node: str
    info: CheckpointInfo | None
    steps: tuple[int, ...]

    @property
    def step(self) -> int | None:
        return self.info.step if self.info else None


def _step_behind(seen: Sequence[_Seen]) -> int | None:
    """The step to use where some nodes' disks are one save ahead of the others'; None in all other cases.

    Each disk gets its part under its name in its own moment: a kill between the first and the last of these
    leaves it on some only, and the one before it on all.
    """
    steps = [each.step for each in seen if each.step is not None]
    if len(steps) < len(seen) or min(steps) == max(steps):
        return None
    before = {max((s for s in each.steps if s < max(steps)), default=None) for each in seen}
    return min(steps) if before == {min(steps)} else None


def _killed_in_publishing(root: Path, seen: Sequence[_Seen], behind: int) -> str:
    without = [each.node for each in seen if each.step == behind]
    ahead = next(each.step for each in seen if each.step != behind)
    assert ahead is not None
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    return (
        f"{root}: {folders.step_name(ahead)} is missing on {without[0]}{more}: its save was killed just "
        f"before; using {folders.step_name(behind)}, which all nodes have"
    )


def _not_alike(root: Path, seen: Sequence[_Seen], *, node_local: bool) -> str:
    listing = "\n".join(
        f"    {each.node}: {'nothing' if each.step is None else folders.step_name(each.step)}"
        for each in seen[:4]
    )
    shared = set.intersection(*(set(each.steps) for each in seen))
    if not node_local:
        advice = (
            "put `load` on a file system that all nodes share; for a disk in each node, set "
            "use_node_local_storage: true and start the nodes that saved"
        )
    elif shared:
        advice = f"choose the newest that all nodes have: --iteration {max(shared)}"
    else:
        advice = (
            "start the nodes that saved, or bring back what is missing; for a fresh start give each node "
            "an empty folder"
        )
    return f"load: {root} is not the same on all nodes\n  found:\n{listing}\n  to do: {advice}"


def _steps_with_manifest(root: Path) -> tuple[int, ...]:
    if not root.is_dir():
        return ()
    found = folders.step_folders(root).items()
    return tuple(step for step, folder in found if (folder / MANIFEST_NAME).exists())


# Whether a folder without manifest is a checkpoint.
_Accepts = Callable[[Path], bool]


def _any_folder(_: Path) -> bool:
    return True


def _no_folder(_: Path) -> bool:
    return False


def is_neox_folder(folder: Path) -> bool:
    """Whether ``folder`` has weights in it and has never been a checkpoint of ours."""
    names = {path.name for path in folder.iterdir()}
    ours = (folder / folders.CONFIG_FOLDER / folders.EFFECTIVE_CONFIG_NAME).exists()
    return not ours and any(map(is_weights_file, names))


def _look(
    root: Path, iteration: int | None, reader: Reader, accepts: _Accepts
) -> CheckpointInfo | None:
    if not root.exists():
        if root.is_symlink():
            raise CheckpointError(
                f"load: {root} is a link to {os.readlink(root)}, which is not there\n"
                "  to do: bring the disk back that it leads to, or name another folder"
            )
        if iteration is None:
            return None
        raise CheckpointError(_no_such_step(root, iteration, {}))
    if not root.is_dir():
        raise CheckpointError(f"load: {root} is a file; expected a folder of checkpoints")
    _refuse_inner_folder(root)
    steps = folders.step_folders(root)
    if iteration is not None:
        if iteration not in steps:
            raise CheckpointError(_no_such_step(root, iteration, steps))
        return _inspect(steps[iteration], iteration, reader, accepts)
    latest = folders.read_latest(root)
    if latest is None:
        return _without_latest(root, steps, reader, accepts)
    step = folders.step_of(latest)
    assert step is not None  # read_latest accepts nothing else
    folder = root / latest
    set_aside = root / (folders.REPLACED_PREFIX + latest)
    notes = _notes(root, step, steps)
    if not folder.exists() and set_aside.is_dir():
        # Killed between the two renames of a second save of this step.
        notes = (f"{latest} was being replaced when its run was killed: using the earlier one",)
        folder = set_aside
    return _inspect(folder, step, reader, accepts, notes)


def _without_latest(
    root: Path, steps: dict[int, Path], reader: Reader, accepts: _Accepts
) -> CheckpointInfo | None:
    if not steps:
        return None
    # The first save of a run, killed after its folder was complete and before `latest` was there:
    # its workshop still exists, which it does at no other time.
    step, folder = max(steps.items())
    workshop = root / (TEMPORARY_PREFIX + folder.name)
    if workshop.is_dir() and not (workshop / folder.name).exists() and read_manifest(folder):
        note = f"{root}: no `latest` yet, its save was killed just before; using {folder.name}"
        return _inspect(folder, step, reader, accepts, (note,))
    raise CheckpointError(
        f"load: {root} holds checkpoints but no file named latest\n"
        f"  found: {_names(steps.values())}\n"
        "  expected: a file `latest` that names the one to use\n"
        f"  to do: pass --iteration {step}, or write {folder.name} into {root / 'latest'}; "
        "for a fresh start use an empty folder"
    )


def _inspect(
    folder: Path, step: int, reader: Reader, accepts: _Accepts, notes: tuple[str, ...] = ()
) -> CheckpointInfo:
    """The checkpoint in ``folder``, or an error that says in what way it is none."""
    manifest = read_manifest(folder)
    if manifest is None:
        if folder.is_dir() and accepts(folder):
            return CheckpointInfo(folder, step, None, notes)
        found = f"no {MANIFEST_NAME} in it" if folder.is_dir() else "no such folder"
        advice = "; its weights alone can be read with finetune: true" if folder.is_dir() else ""
        raise CheckpointError(_not_whole(folder, reader, found, advice))
    if manifest.step != step:
        raise CheckpointError(
            _not_whole(
                folder,
                reader,
                f"its manifest speaks of step {manifest.step}: the folder was renamed",
            )
        )
    wrong = differences(folder, reader.needs(manifest))
    if wrong:
        more = f"; {len(wrong) - 3} more files differ" if len(wrong) > 3 else ""
        found = "; ".join(wrong[:3]) + more
        raise CheckpointError(
            _not_whole(folder, reader, found, remedy=reader.remedy(folder, manifest))
        )
    return CheckpointInfo(folder, step, manifest, notes)


def _notes(root: Path, chosen: int, steps: dict[int, Path]) -> tuple[str, ...]:
    """What lies there beside step ``chosen`` and is newer."""
    newer = {step: folder for step, folder in steps.items() if step > chosen}
    whole = [folder for folder in newer.values() if (folder / MANIFEST_NAME).exists()]
    others = [folder for folder in newer.values() if folder not in whole]
    notes = []
    if others:
        notes.append(
            f"{root}: ignoring {_names(others)}, which has no {MANIFEST_NAME} and so is no "
            f"checkpoint; using {folders.step_name(chosen)}, which latest names"
        )
    if whole:
        notes.append(
            f"{root}: {_names(whole)} is newer, but latest names {folders.step_name(chosen)}, which "
            f"is used; --iteration {folders.step_of(whole[-1].name)} would choose the newest"
        )
    cut = [
        name
        for name in folders.unfinished_saves(root)
        if (folders.step_of(name) or 0) > chosen and not (root / name).exists()
    ]
    if cut:
        notes.append(
            f"{root}: the save of {', '.join(cut)} was cut short and is ignored; using "
            f"{folders.step_name(chosen)}"
        )
    return tuple(notes)


def _refuse_inner_folder(root: Path) -> None:
    if (root / MANIFEST_NAME).exists() and folders.step_of(root.name) is not None:
        raise CheckpointError(
            f"load: {root} is one checkpoint\n  expected: the folder that holds the run's "
            f"checkpoints\n  to do: load: {root.parent} and --iteration {folders.step_of(root.name)}"
        )


def _no_such_step(root: Path, iteration: int, steps: dict[int, Path]) -> str:
    return (
        f"load: {root} has no checkpoint of step {iteration}\n  found: {_names(steps.values())}\n"
        "  to do: pass --iteration with one of these, or leave it out for the latest"
    )


_RESTORE = "restore it, or choose another step with --iteration N"


def _not_whole(
    folder: Path, reader: Reader, found: str, advice: str = "", remedy: str | None = None
) -> str:
    siblings = [f for f in folders.step_folders(folder.parent).values() if f != folder]
    return (
        f"the checkpoint {folder} is not whole\n  found: {found}\n"
        f"  whole beside it: {_names(f for f in siblings if _is_whole(f, reader))}\n"
        f"  to do: {remedy or _RESTORE}{advice}"
    )


def _is_whole(folder: Path, reader: Reader) -> bool:
    try:
        manifest = read_manifest(folder)
    except CheckpointError:
        return False
    return manifest is not None and not differences(folder, reader.needs(manifest))


def _names(found: Iterable[Path]) -> str:
    names = [folder.name for folder in found]
    shown = ", ".join(names[-6:]) or "none"
    return f"… {shown}" if len(names) > 6 else shown
