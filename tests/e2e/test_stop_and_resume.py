"""Protects a job's end, however it comes: by a signal to deepy.py, by a kill of a rank or of deepy.py.

One training run of two ranks goes through them, one after the other, and in the end has the losses,
learning rates and gradient norms of a run that nobody disturbed, to the last bit. Ctrl-C, which goes the
way of SIGTERM, ends a run of its own in the slow tests.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.doors import (
    Done,
    descendants,
    doors,
    finish,
    is_running,
    parent_of,
    start,
    wait_until,
)
from tests.support.tiny import metrics, series, tiny_config, write_tokens

pytestmark = pytest.mark.ranks

STEPS = 60


@dataclass(frozen=True)
class End:
    """How one process of the job ended.

    Attributes:
        done: deepy.py's status and words.
        seconds: from the signal until deepy.py and all its ranks were gone.
        left: processes that outlived it, ten seconds later.
        latest: the checkpoint that ``latest`` names then.
        rows: iterations in ``metrics.jsonl`` then.
    """

    done: Done
    seconds: float
    left: list[int]
    latest: str
    rows: list[int]


def last_row(save: Path) -> int:
    path = save / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["iteration"] if lines else 0


def disturb(folder: Path, save: Path, act: Callable[[int, list[int]], None]) -> End:
    """Start the job, let it do a few steps more than it had, then ``act(deepy's pid, ranks' pids)``."""
    before = last_row(save)
    deepy = start("deepy.py", "--num_gpus", "2", "train.py", "tiny.yml", folder=folder)
    wait_until(lambda: before < last_row(save) - 2, deepy)
    family = descendants(deepy.pid)
    begin = time.monotonic()
    act(deepy.pid, [pid for pid in family if parent_of(pid) == deepy.pid])
    done = finish(deepy)
    while time.monotonic() < begin + 10 and any(map(is_running, family)):
        time.sleep(0.02)
    left = [pid for pid in family if is_running(pid)]
    seconds = time.monotonic() - begin
    latest = (save / "latest").read_text()
    return End(done, seconds, left, latest, [row["iteration"] for row in metrics(save)])


def prepared(place: Path) -> Path:
    write_tokens(place / "data" / "tiny", documents=200)
    changes = {"hidden_dropout": 0.1, "num_workers": 1, "train_iters": STEPS, "eval_iters": 0}
    config = tiny_config(Path(), checkpoint_factor=10_000, train_batch_size=4, **changes)
    (place / "tiny.yml").write_text(json.dumps(config))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("stop"))


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, End]:
    """The life of one job."""
    save = folder / "checkpoints"
    return {
        "SIGTERM": disturb(folder, save, lambda deepy, ranks: os.kill(deepy, signal.SIGTERM)),
        "rank killed": disturb(
            folder, save, lambda deepy, ranks: os.kill(ranks[1], signal.SIGKILL)
        ),
        "deepy killed": disturb(folder, save, lambda deepy, ranks: os.kill(deepy, signal.SIGKILL)),
    }


def require_saved(end: End, name: str) -> None:
    last = end.rows[-1]
    assert end.done.status == 0, end.done.all
    assert end.done.err == ""
    assert f"stopped by {name} after step {last} of {STEPS}" in end.done.out
    assert 3 <= last < STEPS
    assert end.latest == f"global_step{last}"
    assert end.left == []


def test_sigterm_ends_the_step_and_saves(ends: dict[str, End]) -> None:
    require_saved(ends["SIGTERM"], "SIGTERM")


@pytest.mark.slow
def test_so_does_an_interrupt(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    end = disturb(
        folder, folder / "checkpoints", lambda deepy, ranks: os.kill(deepy, signal.SIGINT)
    )
    require_saved(end, "SIGINT")


def test_a_killed_rank_ends_the_job(ends: dict[str, End]) -> None:
    end = ends["rank killed"]
    assert end.done.status == 128 + signal.SIGKILL, end.done.all
    assert (
        "deepy.py: rank 1 of 2 ended with signal SIGKILL; the others were stopped" in end.done.err
    )
    assert "Traceback" not in end.done.err
    assert len(end.done.err.splitlines()) <= 10
    assert end.seconds < 60
    assert end.left == []
    # Nothing was saved after the last stop, and nothing half-way.
    assert end.latest == ends["SIGTERM"].latest


def test_ranks_whose_launcher_is_killed_save_and_end(ends: dict[str, End]) -> None:
    end = ends["deepy killed"]
    assert end.done.status == -signal.SIGKILL
    assert end.left == []
    assert end.latest == f"global_step{end.rows[-1]}"


def test_the_losses_are_those_of_an_undisturbed_run(folder: Path, ends: dict[str, End]) -> None:
    train = ("train.py", "--config-file", "tiny.yml")
    for done in doors(2, *train, folder=folder):
        assert done.status == 0, done.all
    for done in doors(2, *train, "--set", "save=whole", "--set", "load=whole", folder=folder):
        assert done.status == 0, done.all
    disturbed, whole = folder / "checkpoints", folder / "whole"
    assert series(disturbed, "iteration") == list(range(1, STEPS + 1))
    for name in ("train/lm_loss", "train/learning_rate", "train/grad_norm"):
        assert series(disturbed, name) == series(whole, name), name


def test_each_start_says_where_it_goes_on(ends: dict[str, End]) -> None:
    first = ends["SIGTERM"].done.out
    assert "no checkpoint in checkpoints yet: starting from step 0" in first
    assert len(first[: first.index(" step  1/60 ")].splitlines()) <= 40
    stopped = ends["SIGTERM"]
    assert f"{stopped.latest}: step {stopped.rows[-1]}, " in ends["rank killed"].done.out
    # What the killed job had written beyond its last checkpoint is cut, and written again.
    killed = ends["rank killed"].rows[-1]
    assert killed > stopped.rows[-1]
    rows = ends["deepy killed"].rows
    assert rows == list(range(1, rows[-1] + 1))
