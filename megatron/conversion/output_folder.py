"""Folders that conversions fill: whole under their name, or not there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron.checkpointing.together import describe
from megatron.errors import CheckpointError
from megatron.runtime.durable import sync_folder, temporary_name


def require_free(folder: Path, name: str, *, more: str = "") -> None:
    """Insist on a folder that holds nothing yet; ``more``: what else can be done where it holds something.

    Raises:
        CheckpointError: something is there.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        raise CheckpointError(
            f"{name}: {folder} is not empty\n  to do: choose another folder, or remove that one{more}"
        )


@contextmanager
def made_whole(final: Path) -> Iterator[Path]:
    """A folder to fill, which gets the name ``final`` at the end of the block, or is removed."""
    workshop = temporary_name(final)
    with removed_on_failure(workshop, final):
        shutil.rmtree(workshop, ignore_errors=True)  # of a conversion that was killed
        workshop.mkdir(parents=True)
        yield workshop
        sync_folder(workshop)
        workshop.rename(final)
    sync_folder(final.parent)


@contextmanager
def removed_on_failure(folder: Path, final: Path) -> Iterator[None]:
    """Leave nothing of ``folder``, of which ``final`` is to be made, when the block fails or is interrupted.

    Raises:
        CheckpointError: in place of the disk's error.
    """
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise CheckpointError(
                f"{final} cannot be written\n  found: {describe(error)}\n"
                "  to do: make room and allow writing there, or choose another output_dir"
            ) from error
        raise
