"""The names of what is not to stay in a shared folder, and the removal of what dead runs left there.

::

    .build-<run>/     under construction; the file ``heartbeat`` in it changes while its builder lives
    .failed-<run>/    what became of it, with the builder's words
    .probe-<random>   a file by which hosts find out whether they see one folder, or may write there
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from megatron.logging import get_logger

log = get_logger(__name__)

BUILD_PREFIX: Final = ".build-"
FAILED_PREFIX: Final = ".failed-"
PROBE_PREFIX: Final = ".probe-"
HEARTBEAT_NAME: Final = "heartbeat"

_STALE_AFTER: Final = 600.0  # seconds


def list_folder(folder: Path) -> set[str]:
    """The names in ``folder``; none where it does not exist (yet)."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def remove_stale(root: Path, now: float) -> None:
    """Remove from ``root`` what has not changed for ten minutes. What cannot be removed stays.

    Args:
        root: a folder in which runs build or save.
        now: the time on the file system's clock, which may not be this host's; seconds since 1970.
    """
    for name in list_folder(root):
        if not name.startswith((BUILD_PREFIX, FAILED_PREFIX, PROBE_PREFIX)):
            continue
        left, heartbeat = root / name, root / name / HEARTBEAT_NAME
        try:
            age = now - (heartbeat if heartbeat.exists() else left).stat().st_mtime
            if age > _STALE_AFTER:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
                log.info("%s: removed, left behind %d minutes ago", left, age // 60)
        except OSError as error:  # gone meanwhile, or another user's
            log.debug("%s: not removed: %s", left, error)
