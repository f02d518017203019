"""``metrics.jsonl``: exact numbers, cut at a resume, whole after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.errors import NeoXError
from megatron.monitor import JsonlSink


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_there_at_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "deep" / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write({"iteration": 1, "train/lm_loss": 0.1 + 0.2, "train/grad_norm": None})
    expected = '{"iteration": 1, "train/lm_loss": 0.30000000000000004, "train/grad_norm": null}\n'
    assert path.read_text() == expected
    sink.write({"iteration": 2, "train/lm_loss": float("nan"), "x": float("inf"), "y": -1e-320})
    sink.close()
    assert rows(path)[1] == {"iteration": 2, "train/lm_loss": None, "x": None, "y": -1e-320}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_read_back_to_the_last_bit(value: float) -> None:
    path = Path(f"/tmp/neox-metrics-{os.getpid()}.jsonl")
    try:
        sink = JsonlSink(path)
        sink.write({"iteration": 1, "loss": value})
        sink.close()
        assert rows(path)[0]["loss"] == value
    finally:
        path.unlink()


def test_cut_after_keeps_the_other_lines_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"iteration":{i},   "loss":{i}.50}}\n' for i in (1, 2, 2, 3, 4)]
    path.write_text("".join(lines))
    sink = JsonlSink(path)
    sink.cut_after(2)
    assert path.read_text() == "".join(lines[:3])
    sink.write({"iteration": 3})
    sink.close()
    assert path.read_text() == "".join(lines[:3]) + '{"iteration": 3}\n'
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_cut_after_with_nothing_to_cut_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n')
    before = path.stat().st_ino
    sink = JsonlSink(path)
    sink.cut_after(1)
    assert path.stat().st_ino == before


def test_a_run_from_nothing_sets_the_rows_of_the_one_before_aside(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for run in (1, 2, 3):
        sink = JsonlSink(path)
        sink.cut_after(0)
        sink.write({"iteration": run})
        sink.close()
    found = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert found == {
        "metrics.jsonl": '{"iteration": 3}\n',
        "metrics-1.jsonl": '{"iteration": 1}\n',
        "metrics-2.jsonl": '{"iteration": 2}\n',
    }


def test_without_rows_nothing_is_set_aside(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.cut_after(0)
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ('{"iteration": 1}\n{"iterat', '{"iteration": 1}\n'),
        ('{"iterat', ""),
        ('{"iteration": 1}\n' + "x" * 200_000, '{"iteration": 1}\n'),
        ('{"iteration": 1}\n', '{"iteration": 1}\n'),
        ("", ""),
    ],
)
def test_a_torn_last_line_is_removed(tmp_path: Path, content: str, kept: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    sink = JsonlSink(path)
    sink.write({"iteration": 9})
    sink.close()
    assert path.read_text() == kept + '{"iteration": 9}\n'


@pytest.mark.parametrize("line", ["nonsense", '{"step": 3}', "[1]", '{"iteration": "3"}'])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"iteration": 1}}\n{line}\n')
    with pytest.raises(NeoXError, match=r"metrics.jsonl, line 2\n"):
        JsonlSink(path).cut_after(1)
    assert path.read_text() == f'{{"iteration": 1}}\n{line}\n'


def test_a_folder_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(NeoXError, match="choose another log_dir"):
        JsonlSink(tmp_path / "logs" / "metrics.jsonl")


def test_a_full_disk_is_one_clear_error() -> None:
    sink = JsonlSink(Path("/dev/full"))  # takes no byte
    with pytest.raises(NeoXError, match=r"/dev/full: metrics cannot be .*No space left"):
        sink.write({"iteration": 1})
    sink.close()
