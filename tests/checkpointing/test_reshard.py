"""Protects the layout-free form: right to the last bit, whole or not there, and made in little memory."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest import mock

import pytest
import torch

from megatron.checkpointing import find_checkpoint
from megatron.checkpointing import reshard as reshard_module
from megatron.checkpointing.reshard import reshard
from megatron.errors import CheckpointError
from tests.checkpointing.rank_files import STATES, random_states, write_partitioned
from tests.checkpointing.test_kills import Killed, killed_at
from tests.support.doors import ROOT, environment

# Does what the command does twice: the first time for the memory that torch takes for itself.
_MEASURED = """
import sys, threading, time
from megatron.checkpointing.reshard import reshard

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

reshard(sys.argv[1], sys.argv[2])
base, highest, done = anonymous(), [0], threading.Event()

def watch():
    while not done.wait(0.001):
        highest[0] = max(highest[0], anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
reshard(sys.argv[3], sys.argv[4])
done.set()
watcher.join()
print(highest[0] - base)
"""


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_cuts_that_are_not_even_are_joined_exactly(tmp_path: Path) -> None:
    whole = random_states(hidden=8, layers=2)
    assert any(tensor.numel() % 3 for tensor in whole["fp32"].values())
    write_partitioned(tmp_path / "parts", whole, ranks=3, layers=2)
    report = reshard(tmp_path / "parts", tmp_path / "whole")
    for state in STATES:
        for name, tensor in whole[state].items():
            content = torch.load(report.target / "zero" / name / f"{state}.pt", weights_only=True)
            assert torch.equal(content["param"], tensor)
    info = find_checkpoint(tmp_path / "whole")
    assert info is not None
    assert info.manifest is not None
    assert info.manifest.whole is not None
    assert info.manifest.whole.engine.optimizer_step == 3
    assert info.manifest.whole.engine.skipped_steps == 1
    assert info.state == find_checkpoint(tmp_path / "parts").state  # type: ignore[union-attr]


@pytest.mark.usefixtures("fast_disk")
def test_a_kill_at_any_point_leaves_nothing_that_is_half_made(tmp_path: Path) -> None:
    source, target = tmp_path / "parts", tmp_path / "whole"
    write_partitioned(source, random_states(hidden=2, layers=1), ranks=2, layers=1)
    found = []
    for kill in itertools.count(0, 7):
        shutil.rmtree(target, ignore_errors=True)
        # The lock is the system's: it ends with the process.
        with (
            killed_at(kill) as calls,
            mock.patch.object(reshard_module, "claimed_save_folder", return_value=nullcontext()),
            suppress(Killed),
        ):
            reshard(source, target)
        found.append(find_checkpoint(target) is not None)
        # What a dead one left is in nobody's way.
        reshard(source, target, overwrite=True)
        assert all(not name.startswith(".") for name in os.listdir(target)), calls
        if len(calls) <= kill:
            break
    assert not found[0]
    assert found[-1]
    assert sorted(found) == found
    assert len(found) > 10


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    source = tmp_path / "parts"
    folder = write_partitioned(source, random_states(hidden=2, layers=1), ranks=2, layers=1)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = (folder / name).read_bytes()
    for damage, says in (
        (content[:-7], f"{name} has {len(content) - 7:,} bytes"),
        (b"x" * len(content), "is damaged"),
        (None, f"{name} is missing"),
    ):
        (folder / name).unlink()
        if damage is not None:
            (folder / name).write_bytes(damage)
        with pytest.raises(CheckpointError, match=says) as caught:
            reshard(source, tmp_path / "whole")
        assert name in str(caught.value)
        assert not (tmp_path / "whole" / "latest").exists()


def test_the_folder_that_is_read_is_not_written(tmp_path: Path) -> None:
    folder = write_partitioned(tmp_path, random_states(hidden=2, layers=1), ranks=1, layers=1)
    with pytest.raises(CheckpointError, match="choose another folder"):
        reshard(tmp_path, tmp_path)
    reshard(tmp_path, tmp_path / "whole")
    with pytest.raises(CheckpointError, match="layout-free already"):
        reshard(tmp_path / "whole", tmp_path / "again")
    assert folder.is_dir()


def test_only_a_new_form_is_replaced_and_only_when_told(tmp_path: Path) -> None:
    source, target = tmp_path / "parts", tmp_path / "whole"
    write_partitioned(source, random_states(hidden=2, layers=1), ranks=1, layers=1)
    first = reshard(source, target).target.stat().st_ino
    with pytest.raises(CheckpointError, match="give --overwrite to replace it"):
        reshard(source, target)
    assert (target / "global_step4").stat().st_ino == first
    assert reshard(source, target, overwrite=True).target.stat().st_ino != first

    partitioned = tmp_path / "another run"
    folder = write_partitioned(partitioned, random_states(hidden=2, layers=1), ranks=1, layers=1)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="is no layout-free checkpoint"):
        reshard(source, partitioned, overwrite=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_it_takes_little_memory(tmp_path: Path) -> None:
    hidden, layers = 512, 5
    whole = random_states(hidden, layers)
    largest = sum(
        tensor.nbytes for state in STATES for name, tensor in whole[state].items() if ".2." in name
    )
    write_partitioned(tmp_path / "small", random_states(8, 1), ranks=2, layers=1)
    write_partitioned(tmp_path / "large", whole, ranks=2, layers=layers)
    names = ("small", "small whole", "large", "large whole")
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *(str(tmp_path / name) for name in names)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) * 1024 <= 2 * largest
