"""What dead runs left goes after ten minutes of the file system's clock; everything else stays."""

from __future__ import annotations

import os
from pathlib import Path

from megatron.runtime.leftovers import BUILD_PREFIX, FAILED_PREFIX, PROBE_PREFIX, remove_stale

PREFIXES = (BUILD_PREFIX, FAILED_PREFIX, PROBE_PREFIX)
NOW = 1_000_000.0  # of a server whose clock is decades behind


def set_age(path: Path, minutes: float) -> None:
    then = NOW - 60 * minutes
    os.utime(path, (then, then))


def test_what_dead_runs_left_goes_after_ten_minutes(tmp_path: Path) -> None:
    for name, minutes in (("old", 11), ("young", 9)):
        for prefix in (BUILD_PREFIX, FAILED_PREFIX):
            folder = tmp_path / (prefix + name)
            folder.mkdir()
            (folder / "heartbeat").write_text("7\n")
            set_age(folder / "heartbeat", minutes)
            set_age(folder, 60)  # as old as its heartbeat, not as its last file
        (tmp_path / (PROBE_PREFIX + name)).touch()
        set_age(tmp_path / (PROBE_PREFIX + name), minutes)
    (tmp_path / (BUILD_PREFIX + "killed-at-birth")).mkdir()
    set_age(tmp_path / (BUILD_PREFIX + "killed-at-birth"), 11)
    for name in ("global_step10", "latest", "probe-old", ".hidden"):
        (tmp_path / name).touch()
        set_age(tmp_path / name, 1000)
    kept = {"global_step10", "latest", "probe-old", ".hidden"}
    remove_stale(tmp_path, now=NOW)
    assert set(os.listdir(tmp_path)) == kept | {prefix + "young" for prefix in PREFIXES}


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    remove_stale(tmp_path / "none", now=NOW)
