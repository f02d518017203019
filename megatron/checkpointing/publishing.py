"""How a checkpoint comes to be under its name: made in a private folder, given to everybody by a rename.

The steps of :mod:`megatron.checkpointing.save`, for one disk and without the agreement of ranks around
them.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

from megatron.checkpointing import folders
from megatron.checkpointing.manifest import MANIFEST_NAME, Manifest
from megatron.checkpointing.together import describe
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.runtime.durable import new_file, replace_file, sync_folder, temporary_name
from megatron.runtime.stock_deepspeed import deepspeed

log = get_logger(__name__)

# A network file system may hide a new entry from other hosts for seconds.
VISIBILITY_TIMEOUT = 30.0


@dataclass(frozen=True)
class Place:
    """Where one checkpoint is made and where it ends up."""

    root: Path
    step: int

    @property
    def final(self) -> Path:
        return self.root / folders.step_name(self.step)

    @property
    def workshop(self) -> Path:
        """Exists from the first moment of a save until ``latest`` names its result."""
        return temporary_name(self.final)

    @property
    def unfinished(self) -> Path:
        return self.workshop / self.final.name


def prepare(place: Place) -> None:
    """Clear what killed saves left, and make the private folder.

    Raises:
        OSError: the disk refuses.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    removed = folders.clear_leftovers(place.root)
    if removed:
        log.info("removed what a killed save had left: %s", ", ".join(removed))
    place.unfinished.mkdir(parents=True)


def wait_until_visible(path: Path, size: int | None) -> None:
    """Wait until this host sees ``path`` (with ``size`` bytes, unless None).

    Raises:
        CheckpointError: it does not, :data:`VISIBILITY_TIMEOUT` seconds after it was made.
    """
    deadline = time.monotonic() + VISIBILITY_TIMEOUT
    pause = 0.05
    while True:
        try:
            seen = path.stat().st_size
        except FileNotFoundError:
            seen = None
        if seen is not None and size in (None, seen):
            return
        if time.monotonic() > deadline:
            expected = "it" if size is None else f"it with {size:,} bytes"
            found = "nothing" if seen is None else f"{seen:,} bytes"
            raise CheckpointError(
                f"{path} was made by another rank, and this host sees {found} there; expected "
                f"{expected}. `save` must be on a file system that all nodes share; for a disk in "
                "each node, set use_node_local_storage: true"
            )
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)


def finish(place: Place, manifest: Manifest, files: dict[str, int]) -> None:
    """Make the folder a checkpoint: all ``files`` (path inside it → bytes) seen, then the manifest.

    Raises:
        CheckpointError: a file of another host is not seen here.
        OSError: the disk refuses.
    """
    for name, size in files.items():
        wait_until_visible(place.unfinished / name, size)
    replace_file(place.unfinished / MANIFEST_NAME, manifest.to_json())


def publish(place: Place) -> None:
    """Rename the finished folder to its own name, then have ``latest`` name it.

    Raises:
        OSError: the disk refuses; what bore the name before bears it again.
    """
    # Everything that needs space on the disk comes before the first rename.
    latest = place.root / folders.LATEST_NAME
    with new_file(temporary_name(latest)) as file:
        file.write(place.final.name.encode())
    aside = folders.make_way(place.final)
    try:
        os.rename(place.unfinished, place.final)
    except OSError:
        if aside is not None:
            os.rename(aside, place.final)
        raise
    sync_folder(place.root)
    os.replace(temporary_name(latest), latest)
    sync_folder(place.root)
    shutil.rmtree(place.workshop)
    if aside is None:
        return
    if aside.name.startswith(folders.REPLACED_PREFIX):
        remove_old(aside)
    else:
        log.warning(
            "%s held no %s, so it was no checkpoint of ours: renamed to %s",
            place.final,
            MANIFEST_NAME,
            aside.name,
        )


def remove_old(checkpoint: Path) -> None:
    """Remove a checkpoint that a new one, which is whole, replaces; what cannot be removed is said."""
    try:
        folders.remove_folder(checkpoint)
    except OSError as error:
        log.warning("the old checkpoint %s stays: %s", checkpoint, describe(error))


def clean_up(place: Place) -> str:
    """Remove what this failed save has made. Returns a line about what could not be, or nothing."""
    leftovers = [
        path
        for path in (place.workshop, temporary_name(place.root / folders.LATEST_NAME))
        if path.exists()
    ]
    try:
        for path in leftovers:
            folders.remove(path)
    except OSError as error:
        return f"\n  left behind: {describe(error)}; the next save clears it"
    return ""


def time_now() -> str:
    """For :attr:`Manifest.created`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions() -> dict[str, str]:
    """The releases of what writes checkpoints."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "deepspeed": str(deepspeed.__version__),
    }
