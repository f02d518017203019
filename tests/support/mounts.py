"""Disks of a test's own: file systems mounted where nobody else sees them."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRIVATE_MOUNTS = ["unshare", "--mount", "--propagation", "private"]
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


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


def require_mounts(folder: Path) -> None:
    """Skip the test where this machine lets it mount nothing on ``folder``."""
    reason = can_mount(folder)
    if reason:
        pytest.skip(f"no private mounts here: {reason}")


def run_with_mounts(module: str, folder: Path) -> Any:
    """Run a module with mounts of its own; what its last line says, which is JSON.

    Skips the test where this machine lets it mount nothing.
    """
    require_mounts(folder)
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


def move_to_own_disk(folder: Path) -> None:
    """Give this thread, and what it starts from now on, an empty disk of its own at ``folder``.

    As on another node: the same path, other files. See :func:`can_mount` for whether this works here.
    """
    use_private_mounts()
    tmpfs = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    subprocess.run(tmpfs, check=True, capture_output=True)


def use_private_mounts() -> None:
    """Have nobody else see what this thread, and what it starts from now on, mounts."""
    _call_libc("unshare", _CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)


def move_to_disks_of(process: int) -> None:
    """Have this thread see the disks that the first thread of ``process`` sees."""
    namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call_libc("unshare", _CLONE_FS)  # other threads keep their place
        _call_libc("setns", namespace, _CLONE_NEWNS)
    finally:
        os.close(namespace)


def _call_libc(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
