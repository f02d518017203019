"""What people see of a program that is still loading its libraries: nothing, whatever happens."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.launch.test_local_start import CONFIG
from tests.support.doors import ROOT, finish, start, wait_until

pytestmark = pytest.mark.ranks

STARTS = (
    ("deepy.py", "--num_gpus", "2", "train.py", "small"),
    ("train.py", "small"),
    ("generate.py", "small"),
    ("eval.py", "small"),
)
# As some libraries do: an interrupt in the middle of them is lost.
SWALLOWS = """\
import pathlib, time
pathlib.Path("loading").touch()
try:
    time.sleep(20)
except BaseException:
    pass
time.sleep(20)
"""


def torch_that(does: str, folder: Path) -> dict[str, str]:
    """The environment in which importing torch ``does`` that."""
    (folder / "small.yml").write_text(CONFIG)
    (folder / "own").mkdir()
    (folder / "own" / "torch.py").write_text(does)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "own"), str(ROOT)])}


@pytest.mark.parametrize("command", STARTS, ids=lambda command: command[0])
def test_an_interrupt_ends_it_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    process = start(*command, folder=tmp_path, variables=torch_that(SWALLOWS, tmp_path))
    wait_until((tmp_path / "loading").exists, process)
    process.send_signal(signal.SIGINT)
    done = finish(process, timeout=15)
    assert (done.status, done.out, done.err) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("command", STARTS, ids=lambda command: command[0])
def test_a_missing_library_names_the_environment(tmp_path: Path, command: tuple[str, ...]) -> None:
    lacks = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    done = finish(start(*command, folder=tmp_path, variables=torch_that(lacks, tmp_path)))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: No module named 'torch' for /")
    assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize("command", STARTS[1:], ids=lambda command: command[0])
@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
def test_threads_sleep_while_they_wait_unless_the_user_has_chosen(
    tmp_path: Path, command: tuple[str, ...], chosen: str | None
) -> None:
    """OpenMP reads it as it is loaded, with torch; `./deepy.py` sets it for its ranks."""
    variables = torch_that(
        "import os; os._exit(os.environ['OMP_WAIT_POLICY'] == 'PASSIVE')", tmp_path
    )
    variables |= {"OMP_WAIT_POLICY": chosen} if chosen else {}
    done = finish(start(*command, folder=tmp_path, variables=variables))
    assert (done.status, done.err) == (int(chosen is None), "")


@pytest.mark.parametrize("command", STARTS, ids=lambda command: command[0])
@pytest.mark.parametrize("chosen", [None, "TORCH_CPP_LOG_LEVEL", "TORCH_DISTRIBUTED_DEBUG"])
def test_torchs_own_warnings_are_for_those_who_ask(
    tmp_path: Path, command: tuple[str, ...], chosen: str | None
) -> None:
    level = "import os; os._exit(os.environ.get('TORCH_CPP_LOG_LEVEL') == 'ERROR')"
    variables = torch_that(level, tmp_path) | ({chosen: "INFO"} if chosen else {})
    done = finish(start(*command, folder=tmp_path, variables=variables))
    assert (done.status, done.err) == (int(chosen is None), "")
