"""Protects that a disk which refuses is told as such, with the file, whoever writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from megatron.runtime.durable import new_file, replace_file


@pytest.mark.parametrize(
    "fill",
    [
        lambda file: file.write(b"x" * 2**20),
        lambda file: file.write(b"few"),
        # Larger than any buffer: torch makes a RuntimeError of what the disk says.
        lambda file: torch.save({"table": torch.zeros(2**20)}, file),
        lambda file: torch.save({"table": torch.zeros(2)}, file),
    ],
    ids=["much", "little", "torch, much", "torch, little"],
)
def test_a_full_disk_names_the_file(tmp_path: Path, fill: Callable[[BinaryIO], object]) -> None:
    path = tmp_path / "weights.pt"
    os.symlink("/dev/full", path)
    with pytest.raises(OSError, match="No space left") as caught, new_file(path) as file:
        fill(file)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))


def test_a_fault_stays_a_fault(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no disk"), new_file(tmp_path / "weights.pt"):
        raise RuntimeError("no disk")


def test_what_cannot_be_put_in_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for flush in (True, False):
        with pytest.raises(IsADirectoryError):
            replace_file(tmp_path / "there", b"content", flush=flush)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
