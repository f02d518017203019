"""mmap_warmup: once per node, all of the files, and not more than fits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from megatron.data import parallel_read, warmup
from megatron.data.parallel_read import Reading, read_files
from megatron.data.warmup import warm_up
from megatron.errors import BarrierError, DataError
from megatron.runtime.world import World
from tests.support.ranks import run_ranks


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, size in (("a.bin", 1000), ("b.bin", 0), ("c.bin", 300)):
        (tmp_path / name).write_bytes(bytes(range(100)) * (size // 100))
    return [str(tmp_path / name) for name in ("a.bin", "b.bin", "c.bin")]


def test_files_are_read_whole_in_pieces(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_read, "PIECE", 300)
    taken: dict[tuple[str, int], bytes] = {}
    counted: list[int] = []

    def reading(path: str) -> Reading:
        return Reading(
            path,
            Path(path).stat().st_size,
            lambda first, piece: taken.update({(path, first): piece}),
        )

    read_files([reading(path) for path in files], counted.append)
    assert sorted(counted) == [100, 300, 300, 300, 300]
    for path in files:
        pieces = [taken[key] for key in sorted(taken) if key[0] == path]
        assert b"".join(pieces) == Path(path).read_bytes()


def test_a_file_that_shrinks_is_said(files: list[str]) -> None:
    with pytest.raises(DataError, match=r"a\.bin: has 1,000 bytes now, 1,001 when it was opened"):
        read_files([Reading(files[0], 1001, lambda first, piece: None)], lambda nbytes: None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read_files([Reading(str(tmp_path), 1, lambda first, piece: None)], lambda nbytes: None)


def test_the_first_process_reads(files: list[str]) -> None:
    assert warm_up(files, World()) == 1300


def warm_up_here(world: World, files: list[str]) -> int:
    return warm_up(files, world)


@pytest.mark.ranks
def test_one_process_of_a_node_reads(files: list[str]) -> None:
    assert run_ranks(2, warm_up_here, files) == [1300, 0]


def test_what_does_not_fit_is_left_alone(
    files: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each file would fit by itself."""
    monkeypatch.setattr(logging.getLogger("megatron"), "propagate", True)
    monkeypatch.setattr(warmup, "available_memory", lambda: 1299)
    assert warm_up(files, World()) == 0
    assert "not read ahead" in caplog.text


def test_a_missing_file_stops_the_run(files: list[str]) -> None:
    with pytest.raises(BarrierError, match=r"nowhere\.bin"):
        warm_up([*files, "nowhere.bin"], World())
