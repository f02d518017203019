"""The programs of the top level, run as users run them: exit status, output, files, processes.

:func:`door` runs one in a process that a fork server with torch and DeepSpeed already in it has
made, which spares three seconds each time and changes nothing else: it is the same file, with its
own arguments, folder, environment and output. :func:`start` starts a command for real.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tests.support.ranks  # noqa: F401 - says what the fork server imports
from tests.support.ranks import free_port

ROOT = Path(__file__).resolve().parents[2]
# Of the process that runs the tests; a door must not take itself for a rank of something.
_NOT_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Done:
    """How a program ended: its exit status (negative: killed by that signal) and what it said."""

    status: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return f"status {self.status}\n{self.out}\n{self.err}"


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with one OpenMP thread, no rank and no accelerator."""
    ours = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    return ours | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"} | variables


def _run_script(
    script: str, arguments: tuple[str, ...], folder: str, variables: dict[str, str], said: str
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for number, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.close(0)
    sys.argv = [script, *arguments]
    runpy.run_path(str(ROOT / script), run_name="__main__")


def doors(
    ranks: int,
    script: str,
    *arguments: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> list[Done]:
    """Run ``script`` on so many ranks, as torchrun would start them, and wait for all of them."""
    port = str(free_port())
    started = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        place |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = environment(**(place if ranks > 1 else {}) | dict(variables or {}))
        said = str(folder / f".said-{rank}")
        process = _context.Process(
            target=_run_script, args=(script, arguments, str(folder), env, said)
        )
        process.start()
        started.append((process, said))
    deadline = time.monotonic() + timeout
    ended = []
    for process, said in started:
        process.join(max(0.1, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        texts = [Path(f"{said}.{ending}") for ending in ("out", "err")]
        out, err = (path.read_text() if path.exists() else "" for path in texts)
        for path in texts:
            path.unlink(missing_ok=True)
        assert process.exitcode is not None
        ended.append(Done(process.exitcode, out, err))
    return ended


def door(
    script: str,
    *arguments: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Done:
    """Run ``script`` (such as ``train.py``) in ``folder`` as one process."""
    return doors(1, script, *arguments, folder=folder, variables=variables, timeout=timeout)[0]


def start(
    script: str, *arguments: str, folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start ``script`` of the top level for real, with this interpreter, and do not wait."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=folder,
        env=environment(**dict(variables or {})),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str], timeout: float = 60.0) -> Done:
    """Wait for a started program; it is killed when it takes longer."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Done(process.returncode, out, err)


def wait_until(
    what: Callable[[], bool], process: subprocess.Popen[str], timeout: float = 180.0
) -> None:
    """Wait until ``what`` is true while ``process`` runs."""
    deadline = time.monotonic() + timeout
    while not what():
        assert process.poll() is None, finish(process).all
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """The processes that ``pid`` and its children have started, and that live."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def parent_of(pid: int) -> int | None:
    """The process that started ``pid``; None when ``pid`` is gone."""
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def is_running(pid: int) -> bool:
    """Whether ``pid`` is there and no zombie."""
    fields = _fields(pid)
    return fields != [] and fields[0] != "Z"


def _fields(pid: int) -> list[str]:
    """What the system says of ``pid``: its state, its parent, ...; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
