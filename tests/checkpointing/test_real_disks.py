"""``save`` on a full and on a read-only disk, where this machine lets a test mount one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
PRIVATE_MOUNTS = ["unshare", "--mount", "--propagation", "private"]


def can_mount(folder: Path) -> str | None:
    """None, or why a tmpfs cannot be mounted on ``folder`` in a namespace of its own."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    attempt = subprocess.run(
        [*PRIVATE_MOUNTS, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    return attempt.stderr.strip() or "mount failed" if attempt.returncode else None


def test_full_and_read_only_disks(tmp_path: Path) -> None:
    reason = can_mount(tmp_path)
    if reason:
        pytest.skip(f"no private mounts here: {reason}")
    done = subprocess.run(
        [*PRIVATE_MOUNTS, sys.executable, "-m", "tests.checkpointing.real_disks", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for seen in json.loads(done.stdout.splitlines()[-1]):
        assert "No space left on device" in seen["full"]
        assert "Read-only file system" in seen["read-only"]
        for name in ("full", "read-only"):
            assert "still whole: global_step1" in seen[name]
            assert "left behind" not in seen[name]
            assert len(seen[name].splitlines()) <= 10
            assert seen[f"{name} afterwards"] == [["global_step1", "latest"], 1]
        assert seen["room again"] == 2
