"""Protects that files are replaced whole, and that a disk which refuses is told as such, with the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest
import torch

from megatron.runtime.durable import new_file, replace_file, sync_folder


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


@pytest.mark.parametrize("flush", [True, False])
def test_many_replace_one_file_at_once(tmp_path: Path, flush: bool) -> None:
    """Threads of one process, which have its number in common as processes of two containers may."""
    path = tmp_path / "shared.json"
    contents = [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            writers = [pool.submit(replace_file, path, each, flush=flush) for each in contents]
            for writer in writers:
                writer.result()
            assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["shared.json"]


@pytest.mark.parametrize("flush", [True, False])
def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path: Path, flush: bool) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "latest", b"new", flush=flush)
    assert os.listdir(tmp_path) == ["latest"]


@pytest.mark.parametrize(("number", "raised"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_folders_that_cannot_be_flushed(tmp_path: Path, number: int, raised: bool) -> None:
    with mock.patch("os.fsync", side_effect=OSError(number, "no")):
        if raised:
            with pytest.raises(OSError, match="no"):
                sync_folder(tmp_path)
        else:
            sync_folder(tmp_path)
