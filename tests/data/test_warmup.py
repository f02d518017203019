"""mmap_warmup: once per node, all of the file, and not more than fits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from megatron.data import warmup
from megatron.data.warmup import available_memory, warm_up
from megatron.runtime.world import World


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "d.bin"
    path.write_bytes(bytes(1000))
    return path


def test_the_whole_file_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "_PIECE", 300)
    read = []
    touch = warmup._touch
    monkeypatch.setattr(
        warmup, "_touch", lambda descriptor, at: read.append((at, touch(descriptor, at))) or 0
    )
    assert warm_up(file, World())
    assert sorted(read) == [(0, 300), (300, 300), (600, 300), (900, 100)]


def test_one_process_of_a_node_reads(file: Path) -> None:
    assert warm_up(file, World(rank=2, size=4, local_rank=0, local_size=2))
    assert not warm_up(file, World(rank=3, size=4, local_rank=1, local_size=2))


def test_what_does_not_fit_is_left_alone(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("megatron"), "propagate", True)
    monkeypatch.setattr(warmup, "available_memory", lambda: 999)
    assert not warm_up(file, World())
    assert "not read ahead" in caplog.text
    assert available_memory() > 2**20


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert warmup._control_group_rooms(tmp_path)[-1] == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert warmup._control_group_rooms(tmp_path) == []
