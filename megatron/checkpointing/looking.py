"""Look for a checkpoint on one node's disk, and make sure that it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
from megatron.errors import CheckpointError
from megatron.runtime.durable import TEMPORARY_PREFIX


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
    def form(self) -> str:
        """Its step, the layout that wrote it and what is in it, for people."""
        manifest = self.manifest
        if manifest is None:
            whose = (
                "GPT-NeoX's" if is_neox_folder(self.path) else f"a folder without {MANIFEST_NAME}"
            )
            return f"weights of {whose}, step {self.step:,}"
        engine = manifest.engine
        if manifest.whole is not None:
            kind = "layout-free"
        else:
            kind = (
                f"pipe {max(1, engine.pipe_parallel_size)} × data {engine.data_parallel_size} × model "
                f"{engine.model_parallel_size}, ZeRO {engine.zero_stage}, {engine.precision}"
            )
        optimizer = "with" if manifest.has_optimizer else "without"
        return f"step {manifest.step:,}, {kind}, {optimizer} the optimizer's state"

    @property
    def state(self) -> dict[str, Any]:
        """The run's state as it was saved; empty for a foreign checkpoint."""
        return dict(self.manifest.state) if self.manifest else {}


def steps_with_manifest(root: Path) -> tuple[int, ...]:
    """The steps of all that could be a checkpoint of ours."""
    if not root.is_dir():
        return ()
    found = folders.step_folders(root).items()
    return tuple(step for step, folder in found if (folder / MANIFEST_NAME).exists())


# Whether a folder without manifest is a checkpoint.
Accepts = Callable[[Path], bool]


def any_folder(_: Path) -> bool:
    return True


def no_folder(_: Path) -> bool:
    return False


def is_neox_folder(folder: Path) -> bool:
    """Whether ``folder`` has weights in it and has never been a checkpoint of ours."""
    names = {path.name for path in folder.iterdir()}
    ours = (folder / folders.CONFIG_FOLDER / folders.EFFECTIVE_CONFIG_NAME).exists()
    return not ours and any(map(is_weights_file, names))


def look_at(
    root: Path, iteration: int | None, reader: Reader, accepts: Accepts
) -> CheckpointInfo | None:
    """The checkpoint under ``root`` of step ``iteration``, by default the one that ``latest`` names.

    Args:
        root: the root of a run's checkpoints.
        iteration: a step.
        reader: which files of it are to be there.
        accepts: whether a folder without manifest is one.

    Raises:
        CheckpointError: something is there, but it is not whole.
    """
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
    root: Path, steps: dict[int, Path], reader: Reader, accepts: Accepts
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
    folder: Path, step: int, reader: Reader, accepts: Accepts, notes: tuple[str, ...] = ()
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
