"""Token files appear whole or not at all."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatron.data.indexed_dataset import make_dataset
from megatron.errors import DataError
from megatron.preprocessing import output
from megatron.preprocessing.output import new_token_file

U16 = np.dtype("<u2")


def write(prefix: Path, *documents: list[int]) -> None:
    with new_token_file(str(prefix), U16) as builder:
        for document in documents:
            builder.add_item(document)
            builder.end_document()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_has_a_final_name_before_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for it"
    with new_token_file(str(folder / "a"), U16) as builder:
        builder.add_documents([1, 2, 3], [2, 1])
        assert all(".partial-" in name for name in names(folder))
    assert names(folder) == ["a.bin", "a.idx"]
    assert [d.tolist() for d in make_dataset(folder / "a")] == [[1, 2], [3]]
    assert make_dataset(folder / "a").doc_idx.tolist() == [0, 1, 2]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "a", [1, 2])
    with (  # noqa: PT012 - the block is what fails
        pytest.raises(ZeroDivisionError),
        new_token_file(str(tmp_path / "a"), U16) as builder,
    ):
        builder.add_item([7])
        raise ZeroDivisionError
    assert names(tmp_path) == ["a.bin", "a.idx"]
    assert [d.tolist() for d in make_dataset(tmp_path / "a")] == [[1, 2]]


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a", [1, 2])
    write(tmp_path / "a", [3], [4, 5])
    assert [d.tolist() for d in make_dataset(tmp_path / "a")] == [[3], [4, 5]]
    assert names(tmp_path) == ["a.bin", "a.idx"]


def test_no_old_index_ever_stands_beside_new_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", [1, 2])
    seen = []
    real = output.os.replace

    def spy(source: str, target: str) -> None:
        seen.append((Path(target).name, (tmp_path / "a.idx").exists()))
        real(source, target)

    monkeypatch.setattr(output.os, "replace", spy)
    write(tmp_path / "a", [3, 4])  # as many bytes as before: sizes could not tell them apart
    assert seen == [("a.bin", False), ("a.idx", False)]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"file/a: cannot be written: (Not a directory|File exists)"
    ):
        write(tmp_path / "file" / "a", [1])


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limit[1]))
        with pytest.raises(DataError, match=r"/a: cannot be written: File too large"):
            write(tmp_path / "a", [1] * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert names(tmp_path) == []


def test_files_of_killed_runs_are_cleared_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = socket.gethostname()
    dead = [f"a.bin.partial-{host}-{gone.pid}", f"a.idx.partial-{host}-{gone.pid}"]
    kept = [
        f"a.bin.partial-{host}-1",
        f"a.bin.partial-elsewhere-{gone.pid}",
        f"aa.bin.partial-{host}-{gone.pid}",
    ]
    for name in dead + kept:
        (tmp_path / name).touch()
    write(tmp_path / "a", [1])
    assert names(tmp_path) == sorted([*kept, "a.bin", "a.idx"])
