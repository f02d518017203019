"""The manifest: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron.checkpointing.manifest import MANIFEST_NAME, differences, read_manifest
from megatron.errors import CheckpointError
from tests.checkpointing.folders_on_disk import FILES, make_checkpoint, make_manifest


def test_a_manifest_is_read_back_as_it_was(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 3)
    manifest = read_manifest(folder)
    assert manifest == make_manifest(3)
    assert manifest.state["loss_sum"] == 0.30000000000000004
    assert read_manifest(tmp_path / "nowhere") is None
    assert read_manifest(folder / MANIFEST_NAME) is None


def test_a_state_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        make_manifest(1, state={"loss": float("nan")}).to_json()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format_version": 1, "st', "cannot be read"),
        ("[]", "format_version None"),
        ('{"format_version": 2}', "format_version 2"),
        ('{"format_version": 1}', "damaged"),
        (json.dumps(json.loads(make_manifest(1).to_json()) | {"disks": []}), "lists no files"),
        (json.dumps(json.loads(make_manifest(1).to_json()) | {"engine": {}}), "damaged"),
        (
            json.dumps(json.loads(make_manifest(1).to_json()) | {"disks": [{"a": "b"}]}),
            "no numbers",
        ),
    ],
)
def test_a_damaged_manifest_is_an_error_with_its_path(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / MANIFEST_NAME).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_manifest(tmp_path)
    assert str(tmp_path / MANIFEST_NAME) in str(caught.value)


def test_differences_say_both_numbers(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 3)
    assert differences(folder, FILES) == []
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"xx")
    (folder / "configs" / "a.yml").unlink()
    assert differences(folder, FILES) == [
        "mp_rank_00_model_states.pt has 2 bytes, the manifest says 7",
        "configs/a.yml is missing, the manifest says 3 bytes",
    ]


def test_the_files_of_a_node() -> None:
    disks = [{"a": 1}, {"b": 2}]
    local = make_manifest(1, node_local=True, disks=disks)
    assert [local.files_of(node) for node in (0, 1, 2)] == [{"a": 1}, {"b": 2}, {"a": 1}]
    shared = make_manifest(1, disks=[{"a": 1}])
    assert shared.files_of(5) == {"a": 1}
