"""``save`` on a full and on a read-only disk, where this machine lets a test mount one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mounts import run_with_mounts

pytestmark = pytest.mark.ranks


# A run through its door meets the same disks in tests/e2e.
@pytest.mark.slow
def test_full_and_read_only_disks(tmp_path: Path) -> None:
    for seen in run_with_mounts("tests.checkpointing.real_disks", tmp_path):
        assert "No space left on device" in seen["full"]
        assert "Read-only file system" in seen["read-only"]
        for name in ("full", "read-only"):
            assert "still whole: global_step1" in seen[name]
            assert "left behind" not in seen[name]
            assert len(seen[name].splitlines()) <= 10
            assert seen[f"{name} afterwards"] == [["global_step1", "latest"], 1]
        assert seen["room again"] == 2
