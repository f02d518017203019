"""Names under a root: what is cleared, what makes way, what retention picks."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.checkpointing import folders
from tests.checkpointing.folders_on_disk import make_checkpoint


def test_names() -> None:
    assert folders.step_name(20) == "global_step20"
    assert folders.step_of("global_step020") == 20
    for name in ("global_step", "global_step2x", "xglobal_step2", "global_step2/"):
        assert folders.step_of(name) is None


def test_only_our_leftovers_are_cleared(tmp_path: Path) -> None:
    for name in (".tmp-global_step5", ".tmp-other", "global_step7", ".replaced-global_step9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    make_checkpoint(tmp_path, 9)
    (tmp_path / ".replaced-global_step11").mkdir()
    (tmp_path / ".tmp-latest").touch()
    (tmp_path / "metrics.jsonl").touch()
    removed = folders.clear_leftovers(tmp_path)
    assert removed == [".replaced-global_step9", ".tmp-global_step5", ".tmp-latest"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".tmp-other",
        "global_step11",
        "global_step7",
        "global_step9",
        "metrics.jsonl",
    ]


@pytest.mark.parametrize(
    ("newest", "keep", "removed"),
    [(40, 1, [10, 30]), (40, 2, [10]), (40, 9, []), (30, 1, [10]), (10, 1, [])],
)
def test_retention(tmp_path: Path, newest: int, keep: int, removed: list[int]) -> None:
    for step in (10, 30, 40):
        make_checkpoint(tmp_path, step)
    make_checkpoint(tmp_path, 20, manifest=False)
    found = folders.outdated(tmp_path, newest, keep)
    assert [folders.step_of(folder.name) for folder in found] == removed


def test_a_folder_stops_being_a_checkpoint_before_its_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path, 10)
    seen: list[list[str]] = []
    monkeypatch.setattr(
        "shutil.rmtree", lambda path: seen.append([p.name for p in tmp_path.iterdir()])
    )
    folders.remove_folder(folder)
    assert seen == [[".tmp-global_step10"]]
