"""Names under a root: what is cleared, what makes way, what retention picks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from megatron.checkpointing import claimed_save_folder, folders
from megatron.checkpointing.publishing import Place, finish, prepare, publish
from megatron.runtime.world import World
from tests.checkpointing.folders_on_disk import make_checkpoint, make_manifest
from tests.support.mounts import require_mounts, use_private_mounts
from tests.support.ranks import run_ranks


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


def test_of_a_checkpoint_that_is_a_link_the_link_goes(tmp_path: Path) -> None:
    """Kept on another disk, it is somebody's."""
    root, archive = tmp_path / "root", tmp_path / "archive"
    for folder in (root, archive):
        folder.mkdir()
    files = sorted(make_checkpoint(archive, 10).rglob("*"))
    (root / "global_step10").symlink_to(archive / "global_step10")
    folders.remove_folder(root / "global_step10")
    assert list(root.iterdir()) == []
    (root / "global_step10").symlink_to(archive / "global_step10")
    save_again(root, 10)
    assert not (root / "global_step10").is_symlink()
    assert sorted(path.name for path in root.iterdir()) == ["global_step10", "latest"]
    assert sorted((archive / "global_step10").rglob("*")) == files


def save_again(root: Path, step: int) -> None:
    place, manifest = Place(root, step), make_manifest(step, disks=[{"weights": 3}])
    prepare(place)
    (place.unfinished / "weights").write_bytes(b"abc")
    finish(place, manifest, manifest.disks[0])
    publish(place)


def test_a_lock_that_cannot_be_removed_ends_no_run(tmp_path: Path) -> None:
    with claimed_save_folder(tmp_path, world=World()):
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").mkdir()
    assert (tmp_path / ".lock").is_dir()


def save_beside_what_is_in_use(world: World, root: Path) -> list[str]:
    """Save where an earlier removal was cut short, of a folder that cannot be removed yet."""
    use_private_mounts()
    for busy in (".tmp-global_step5/busy", "global_step10/busy"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root / busy)], check=True)
    save_again(root, 10)
    return sorted(path.name for path in root.iterdir())


@pytest.mark.ranks
def test_what_cannot_be_removed_stays_and_the_save_goes_on(tmp_path: Path) -> None:
    require_mounts(tmp_path)
    (tmp_path / ".tmp-global_step5" / "busy").mkdir(parents=True)
    (make_checkpoint(tmp_path, 10) / "busy").mkdir()
    assert run_ranks(1, save_beside_what_is_in_use, tmp_path) == [
        [".replaced-global_step10", ".tmp-global_step5", "global_step10", "latest"]
    ]


def test_what_is_in_the_way_finds_a_free_name(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = make_checkpoint(tmp_path, 10, manifest=False)
        assert folders.make_way(folder) == tmp_path / f"global_step10.aside{number}"
    (tmp_path / ".tmp-global_step20").mkdir()  # of a removal that was cut short
    folders.remove_folder(make_checkpoint(tmp_path, 20))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "global_step10.aside1",
        "global_step10.aside2",
    ]


def test_what_was_there_gets_its_name_back_when_publishing_fails(tmp_path: Path) -> None:
    place = Place(tmp_path, 10)
    prepare(place)
    earlier = sorted(make_checkpoint(tmp_path, 10).rglob("*"))
    place.unfinished.rmdir()
    with pytest.raises(FileNotFoundError):
        publish(place)
    assert sorted((tmp_path / "global_step10").rglob("*")) == earlier
