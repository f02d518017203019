"""A file system that shows new entries late, as network file systems do."""

from __future__ import annotations

import os
import time
from pathlib import Path


class LateListing:
    """Stands in for ``fs_barrier.list_folder``: a name is seen ``delay`` seconds after it was there.

    What was there at the first look is seen at once.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._since: dict[Path, dict[str, float]] = {}
        self.hid: set[str] = set()

    def __call__(self, folder: Path) -> set[str]:
        names = set(os.listdir(folder)) if folder.exists() else set()
        now = time.monotonic()
        if folder not in self._since:
            self._since[folder] = dict.fromkeys(names, now - self._delay)
        since = self._since[folder]
        for name in names:
            since.setdefault(name, now)
        seen = {name for name in names if now - since[name] >= self._delay}
        self.hid |= names - seen
        return seen
