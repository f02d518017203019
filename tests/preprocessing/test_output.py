"""Token files appear whole or not at all."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatron.data.indexed_dataset import make_dataset
from megatron.errors import DataError
from megatron.preprocessing import output
from megatron.preprocessing.encoding import PackedDocuments
from megatron.preprocessing.output import TokenFileSet

U16 = np.dtype("<u2")


def packed(*documents: list[int]) -> PackedDocuments:
    tokens = np.array([token for document in documents for token in document], U16)
    return PackedDocuments(tokens, np.array([len(d) for d in documents], np.int32), 0)


def write(prefix: Path, *documents: list[int]) -> None:
    with TokenFileSet([str(prefix)], U16) as files:
        files.add([packed(*documents)])
        files.publish()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_has_a_final_name_before_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for it"
    with TokenFileSet([str(folder / "a"), str(folder / "b")], U16) as files:
        files.add([packed([1, 2], [3]), packed([4])])
        assert all(".partial-" in name for name in names(folder))
        files.publish()
        assert names(folder) == ["a.bin", "a.idx", "b.bin", "b.idx"]
    assert [d.tolist() for d in make_dataset(folder / "a")] == [[1, 2], [3]]
    assert [d.tolist() for d in make_dataset(folder / "b")] == [[4]]
    assert make_dataset(folder / "a").doc_idx.tolist() == [0, 1, 2]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "a", [1, 2])
    with (  # noqa: PT012 - the block is what fails
        pytest.raises(ZeroDivisionError),
        TokenFileSet([str(tmp_path / "a"), str(tmp_path / "b")], U16) as files,
    ):
        files.add([packed([7]), packed([8])])
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
        TokenFileSet([str(tmp_path / "file" / "a")], U16)


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with (  # noqa: PT012 - the block is what fails
        pytest.raises(DataError, match=r"a\.bin: cannot be written: No space left on device"),
        TokenFileSet([str(tmp_path / "a")], U16) as files,
    ):
        files._files[0].builder.add_documents = full  # type: ignore[method-assign]
        files.add([packed([1])])
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
