"""Disks of a test's own: file systems mounted where nobody else sees them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def run_with_mounts(module: str, folder: Path) -> Any:
    """Run a module with mounts of its own; what its last line says, which is JSON.

    Skips the test where this machine lets it mount nothing.
    """
    reason = can_mount(folder)
    if reason:
        pytest.skip(f"no private mounts here: {reason}")
    done = subprocess.run(
        [*PRIVATE_MOUNTS, sys.executable, "-m", module, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
