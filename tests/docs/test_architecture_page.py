"""docs/architecture.md: its changes fit the code, and what it says after them is so."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doors import environment

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, flags=re.M | re.S)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all changes of the page, of which each must fit exactly one place."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("megatron", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("deepy.py", "train.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tools").symlink_to(ROOT / "tools")
    changes = [text for language, text in BLOCKS if language == "diff"]
    assert len(changes) >= 6
    for change in changes:
        done = subprocess.run(
            ["git", "apply", "-C1", "-"],
            cwd=folder,
            input=change,
            text=True,
            capture_output=True,
            check=False,
            env=environment(GIT_DIR=str(folder / "no-repository")),
        )
        assert done.returncode == 0, f"{change}\n{done.stderr}"
    return folder


@pytest.mark.ranks
def test_what_it_adds_works(changed: Path) -> None:
    """The blocks run in the order of the page; those in Python share a process, which torch makes slow."""
    waiting: list[str] = []
    for language, text in [*BLOCKS, ("bash", "true")]:
        if language == "python":
            waiting.append(text)
        elif language == "bash":
            # Python blocks that need a command's result stand behind it.
            _python(waiting, changed)
            waiting = []
            _run(["bash", "-e", "-c", text], changed)


def _python(blocks: list[str], folder: Path) -> None:
    if blocks:
        program = "import sys, json\nfor text in json.load(sys.stdin):\n    exec(text, {})"
        _run([sys.executable, "-c", program], folder, blocks)


def _run(argv: list[str], folder: Path, blocks: list[str] | None = None) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment(PATH=path, PYTHONPATH=str(folder)),
        input=json.dumps(blocks),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{argv[-1] if blocks is None else blocks}\n{done.stdout[-3000:]}"


def test_files_that_it_names_exist() -> None:
    prose = re.sub(r"^```\w+\n.*?^```$", "", TEXT, flags=re.M | re.S)
    names = set(re.findall(r"`((?:megatron|tools|tests|configs)/[\w/.]+)`", prose))
    assert len(names) > 25
    assert not sorted(name for name in names if not (ROOT / name).exists())
    for room in ("preprocessing", "data", "model", "neox_arguments", "checkpointing"):
        assert (ROOT / "megatron" / room).is_dir()


def test_the_floors_are_those_that_are_kept() -> None:
    from tests.test_floors import FLOOR_OF

    for floor, rooms in re.findall(r"^\| (\d) \| (.*?) \|", TEXT, flags=re.M):
        for room in re.findall(r"`megatron/(\w+)", rooms):
            assert FLOOR_OF[room] == int(floor), room
