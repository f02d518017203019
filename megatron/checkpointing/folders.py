"""The names under a checkpoint root, and how they come and go.

::

    <root>/global_step20/            a checkpoint: it holds a manifest
    <root>/latest                    the text "global_step20"
    <root>/.tmp-global_step30/       a save that is under way, was killed, or a removal
    <root>/.replaced-global_step20/  the earlier checkpoint of a step that is being saved again

A checkpoint appears under its name by one rename of a finished folder, and leaves it by one rename
before its files are removed, so that no kill at any moment leaves half a folder under such a name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from megatron.checkpointing.manifest import MANIFEST_NAME
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.runtime.durable import TEMPORARY_PREFIX, sync_folder, temporary_name

log = get_logger(__name__)

LATEST_NAME = "latest"
CONFIG_FOLDER = "configs"
EFFECTIVE_CONFIG_NAME = "effective_config.json"
REPLACED_PREFIX = ".replaced-"

_STEP_NAME = re.compile(r"global_step(\d+)")
_LEFTOVER = re.compile(
    rf"{re.escape(TEMPORARY_PREFIX)}(global_step\d+|{LATEST_NAME})"
    rf"|{re.escape(REPLACED_PREFIX)}global_step\d+"
)


def step_name(step: int) -> str:
    """The name of the folder of ``step``, as DeepSpeed and GPT-NeoX form it."""
    return f"global_step{step}"


def step_of(name: str) -> int | None:
    """The step that a folder's name tells, or None for other names."""
    match = _STEP_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def step_folders(root: Path) -> dict[int, Path]:
    """The folders under ``root`` whose names tell a step, whole or not, in order of steps."""
    found = {}
    for entry in root.iterdir():
        step = step_of(entry.name)
        if step is not None and entry.is_dir():
            found[step] = entry
    return dict(sorted(found.items()))


def unfinished_saves(root: Path) -> list[str]:
    """The step folders under ``root`` whose saving (or removal) was cut short, by their names."""
    return sorted(
        entry.name.removeprefix(TEMPORARY_PREFIX)
        for entry in root.iterdir()
        if entry.name.startswith(f"{TEMPORARY_PREFIX}global_step") and entry.is_dir()
    )


def read_latest(root: Path) -> str | None:
    """The folder name that ``<root>/latest`` holds, or None without such a file.

    Raises:
        CheckpointError: the file is there but names no step folder.
    """
    path = root / LATEST_NAME
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if step_of(text) is None:
        steps = ", ".join(folder.name for folder in step_folders(root).values()) or "none"
        raise CheckpointError(
            f"{path}\n  found: {text[:60]!r}\n  expected: the name of a folder, global_step<N>\n"
            f"  to do: write one of these into it: {steps}"
        )
    return text


def remove_folder(folder: Path) -> None:
    """Remove a checkpoint: it stops being one at once, whatever interrupts the rest."""
    if not folder.name.startswith(REPLACED_PREFIX):
        doomed = temporary_name(folder)
        if os.path.lexists(doomed):
            remove(doomed)
        os.rename(folder, doomed)
        sync_folder(folder.parent)
        folder = doomed
    remove(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder with what is in it; of a link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def clear_leftovers(root: Path) -> list[str]:
    """Remove what killed saves left under ``root``. Returns the names removed.

    What cannot be removed is said and stays: on a network file system somebody may still be reading it.

    A checkpoint that was set aside for a successor which never came gets its name back. Folders that
    have a step's name but no manifest are not touched: this project never leaves such, so they are
    somebody's, perhaps the GPT-NeoX checkpoint that this run started from.
    """
    removed = []
    for entry in sorted(root.iterdir()):
        name = entry.name.removeprefix(REPLACED_PREFIX)
        if name != entry.name and step_of(name) is not None and not (root / name).exists():
            os.rename(entry, root / name)
            continue
        if not _LEFTOVER.fullmatch(entry.name):
            continue
        try:
            remove(entry)
        except OSError as error:
            log.warning("%s is left of an earlier save and stays: %s", entry, error)
            continue
        removed.append(entry.name)
    return removed


def make_way(folder: Path) -> Path | None:
    """Rename what bears the name ``folder`` away. Returns where it went, None if nothing was there.

    An earlier checkpoint goes to a ``.replaced-`` name, under which a reader still finds it until
    the new one is complete. A folder without manifest goes to a name beside it and stays there.
    """
    if not os.path.lexists(folder):
        return None
    if (folder / MANIFEST_NAME).exists():
        aside = folder.with_name(REPLACED_PREFIX + folder.name)
    else:
        number = 1
        while (aside := folder.with_name(f"{folder.name}.aside{number}")).exists():
            number += 1
    os.rename(folder, aside)
    return aside


def outdated(root: Path, newest: int, keep_last: int) -> list[Path]:
    """The checkpoints to remove so that ``keep_last`` remain, counted back from step ``newest``.

    Later steps (of a run that this one went back behind) and folders without manifest are never
    among them.
    """
    ours = [
        folder
        for step, folder in step_folders(root).items()
        if step <= newest and (folder / MANIFEST_NAME).exists()
    ]
    return ours[: max(0, len(ours) - keep_last)]
