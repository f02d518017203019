"""Protects that a forked process runs: one that is stuck before its first line is forked anew."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron.runtime.forking import SureForkContext

# How often a child is stuck where CPython would be: before anything of its own.
PROGRAM = """
import os, sys, time
from pathlib import Path
from megatron.errors import run_door
from megatron.runtime import forking

folder, stuck = Path(sys.argv[1]), int(sys.argv[2])
forking.PATIENCE_S = 0.5

def hang():
    before = len(list(folder.glob("fork-*")))
    (folder / f"fork-{os.getpid()}").touch()
    if before < stuck:
        time.sleep(600)

def work(word):
    (folder / "worked").write_text(word)
    sys.exit(3)

def main():
    os.register_at_fork(after_in_child=hang)
    process = forking.SureForkContext().Process(target=work, args=("done",))
    process.start()
    process.join()
    print(process.exitcode, process.sentinel >= 0)

run_door(main)
"""


def run(folder: Path, stuck: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(stuck)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def forks(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("fork-")) for path in folder.glob("fork-*")]


def require_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_a_child_that_is_stuck_is_forked_anew(tmp_path: Path, stuck: int) -> None:
    begin = time.monotonic()
    done = run(tmp_path, stuck)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 True\n", "")
    assert (tmp_path / "worked").read_text() == "done"
    assert len(forks(tmp_path)) == stuck + 1
    assert time.monotonic() - begin > stuck * 0.5
    require_gone(forks(tmp_path))


def test_one_that_never_runs_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, 3)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: a process that was forked 3 times did not run within 0.5 s each time\n"
    )
    assert len(forks(tmp_path)) == 3
    require_gone(forks(tmp_path))
    assert not (tmp_path / "worked").exists()


def test_no_file_stays_open() -> None:
    def names() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))

    before = names()
    for _ in range(3):
        process = SureForkContext().Process(target=os.getpid)
        process.start()
        process.join()
        process.close()
    assert names() == before
