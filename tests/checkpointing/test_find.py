"""Nothing there yet, there and whole, there but broken: three answers that never mix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatron.checkpointing import find_checkpoint
from megatron.checkpointing.manifest import MANIFEST_NAME
from megatron.errors import CheckpointError
from megatron.runtime.world import World
from tests.checkpointing.folders_on_disk import make_checkpoint, make_manifest

pytestmark = pytest.mark.usefixtures("logs_reach_pytest")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 10 and 20, of which ``latest`` names 20."""
    for step in (10, 20):
        make_checkpoint(tmp_path, step)
    (tmp_path / "latest").write_text("global_step20\n")
    return tmp_path


def message(root: Path, iteration: int | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(root, iteration)
    text = str(caught.value)
    assert len(text.splitlines()) <= 10
    return text


def test_nothing_there_yet(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "nowhere") is None
    assert find_checkpoint(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text("")
    assert find_checkpoint(tmp_path) is None
    assert "no checkpoint of step 5" in message(tmp_path / "nowhere", 5)


def test_the_latest_and_the_chosen_one(root: Path) -> None:
    info = find_checkpoint(root)
    assert (info.path, info.step) == (root / "global_step20", 20)
    assert info.state == {"consumed_samples": 160, "loss_sum": 0.1 + 0.2}
    assert info.notes == ()
    assert find_checkpoint(root, 10).step == 10
    assert find_checkpoint(root, 20) == info


def test_a_path_relative_to_the_working_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert find_checkpoint(".").path == root / "global_step20"


def test_a_step_that_is_not_there(root: Path) -> None:
    assert "found: global_step10, global_step20" in message(root, 15)


@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "configs/a.yml"])
def test_one_file_cut_stops(root: Path, name: str) -> None:
    path = root / "global_step20" / name
    size = path.stat().st_size
    os.truncate(path, size - 1)
    text = message(root)
    assert f"{name} has {size - 1} bytes, the manifest says {size}" in text
    assert "whole beside it: global_step10" in text
    assert find_checkpoint(root, 10).step == 10


def test_one_file_missing_stops(root: Path) -> None:
    (root / "global_step20" / "mp_rank_00_model_states.pt").unlink()
    assert "mp_rank_00_model_states.pt is missing" in message(root)


def test_the_folder_that_latest_names_must_be_whole(root: Path) -> None:
    (root / "global_step20" / MANIFEST_NAME).unlink()
    assert f"no {MANIFEST_NAME} in it" in message(root)
    (root / "latest").write_text("global_step30")
    assert "no such folder" in message(root)


def test_a_renamed_folder_is_noticed(root: Path) -> None:
    os.rename(root / "global_step20", root / "global_step25")
    assert "speaks of step 20" in message(root, 25)


@pytest.mark.parametrize("content", ["", "global_step", "../../etc", "global_step20x", "\xff"])
def test_a_latest_that_names_no_step(root: Path, content: str) -> None:
    (root / "latest").write_bytes(content.encode("latin-1"))
    assert "expected: the name of a folder, global_step<N>" in message(root)


def test_no_latest_is_not_a_fresh_start(root: Path) -> None:
    (root / "latest").unlink()
    assert "pass --iteration 20" in message(root)


def test_the_first_save_killed_just_before_latest(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10)
    (tmp_path / ".tmp-global_step10").mkdir()
    info = find_checkpoint(tmp_path)
    assert info.step == 10
    assert "killed just before" in info.notes[0]


def test_a_second_save_of_a_step_killed_between_its_renames(root: Path) -> None:
    os.rename(root / "global_step20", root / ".replaced-global_step20")
    info = find_checkpoint(root)
    assert info.path == root / ".replaced-global_step20"
    assert "was being replaced" in info.notes[0]


def test_what_is_newer_than_latest_is_said(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_checkpoint(root, 30, manifest=False)
    make_checkpoint(root, 40)
    for name in (".tmp-global_step50", ".tmp-global_step15", ".tmp-global_step40"):
        (root / name).mkdir()
    info = find_checkpoint(root)
    assert info.step == 20
    assert len(info.notes) == 3
    text = caplog.text
    assert f"ignoring global_step30, which has no {MANIFEST_NAME}" in text
    assert "--iteration 40 would choose the newest" in text
    assert ": the save of global_step50 was cut short" in text


def test_a_checkpoint_folder_itself_is_not_a_root(root: Path) -> None:
    assert f"load: {root} and --iteration 20" in message(root / "global_step20")


def test_a_link_to_a_disk_that_is_away_is_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "away")
    text = message(tmp_path / "link")
    assert f"link to {tmp_path / 'away'}, which is not there" in text
    (tmp_path / "away").mkdir()
    assert find_checkpoint(tmp_path / "link") is None


def test_a_file_is_not_a_root(root: Path) -> None:
    assert "is a file" in message(root / "latest")


def test_foreign_folders_only_where_asked_for(root: Path) -> None:
    make_checkpoint(root, 30, manifest=False)
    (root / "latest").write_text("global_step30")
    info = find_checkpoint(root, foreign=True)
    assert (info.step, info.manifest, info.state) == (30, None, {})
    assert info.form == "weights of GPT-NeoX's, step 30"
    (root / "global_step30" / "configs" / "effective_config.json").write_text("{}")
    assert info.form == "weights of a folder without manifest.json, step 30"  # one of ours
    assert "finetune: true" in message(root)


def test_each_node_is_held_to_its_own_part(tmp_path: Path) -> None:
    disks = [{"a.pt": 1}, {"b.pt": 2}]
    make_checkpoint(tmp_path, 5, node_local=True, disks=disks)
    (tmp_path / "latest").write_text("global_step5")
    assert find_checkpoint(tmp_path, world=World(node_rank=0)).step == 5
    with pytest.raises(CheckpointError, match="this is the part of node 0 of 2: start") as caught:
        find_checkpoint(tmp_path, world=World(node_rank=1, num_nodes=2))
    assert "b.pt is missing" in str(caught.value)


def test_one_node_goes_on_only_from_the_parts_of_all(tmp_path: Path) -> None:
    disks = [{"a.pt": 1}, {"b.pt": 2}]
    folder = make_checkpoint(tmp_path, 5, node_local=True, disks=disks)
    (tmp_path / "latest").write_text("global_step5")
    with pytest.raises(CheckpointError, match="start the 2 nodes that saved it") as caught:
        find_checkpoint(tmp_path, continues=True, node_local=True)
    assert f"rsync -a {folder} {tmp_path}/latest SHARED/" in str(caught.value)
    assert find_checkpoint(tmp_path).step == 5  # weights are in each part
    (folder / "a.pt").unlink()
    with pytest.raises(CheckpointError, match="the missing files, from the disks of the 2 nodes"):
        find_checkpoint(tmp_path, continues=True)
    for name, size in (("a.pt", 1), ("b.pt", 2)):
        (folder / name).write_bytes(b"x" * size)
    assert find_checkpoint(tmp_path, continues=True, node_local=True).step == 5


def test_many_missing_files_are_summed_up(root: Path) -> None:
    manifest = make_manifest(20, disks=[{f"shard{i}.pt": 1 for i in range(9)}])
    (root / "global_step20" / MANIFEST_NAME).write_bytes(manifest.to_json())
    assert "6 more files differ" in message(root)


def test_a_broken_manifest_is_not_named_as_whole(root: Path) -> None:
    (root / "global_step10" / "manifest.json").write_text("{")
    (root / "global_step20" / "configs" / "a.yml").unlink()
    assert "whole beside it: none" in message(root)


def test_a_latest_that_cannot_be_read(root: Path) -> None:
    (root / "latest").unlink()
    (root / "latest").mkdir()
    assert "latest cannot be read: Is a directory" in message(root)
