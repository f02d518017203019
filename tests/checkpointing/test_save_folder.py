"""The folder for checkpoints is tried before the first step, on every node."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from megatron.checkpointing import check_save_folder
from megatron.checkpointing.save_folder import claimed_save_folder
from megatron.errors import CheckpointError
from megatron.runtime.world import World
from tests.support.mounts import can_mount, use_private_mounts
from tests.support.ranks import run_ranks


def on_a_second_node(world: World, root: str, options: list[str]) -> str:
    """What the check says where node 1 sees ``root`` mounted with these ``options``."""
    if world.node_rank == 1:
        use_private_mounts()
        subprocess.run(["mount", *options, root], check=True, capture_output=True)
        full = Path(root) / "full"
        if "tmpfs" in options:
            with pytest.raises(OSError, match="No space"):
                full.write_bytes(b"0" * 2**20)
    try:
        check_save_folder(root, world=world)
    except CheckpointError as error:
        left = [path.name for path in Path(root).iterdir() if path.name != "full"]
        return f"{error} left: {left}"
    return "fine"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("Read-only file system", ["--bind", "-o", "ro", "{root}"]),
        ("No space left on device", ["-t", "tmpfs", "-o", "size=64k", "tmpfs"]),
    ],
)
def test_one_node_that_cannot_write_stops_all(tmp_path: Path, why: str, options: list[str]) -> None:
    reason = can_mount(tmp_path)
    if reason:
        pytest.skip(f"no private mounts here: {reason}")
    root = str(tmp_path)
    found = run_ranks(
        3,  # one on node 0, two on node 1
        on_a_second_node,
        root,
        [option.format(root=root) for option in options],
        env_of_rank=lambda rank: {
            "LOCAL_RANK": str(max(0, rank - 1)),
            "LOCAL_WORLD_SIZE": "2" if rank else "1",
            "NODE_RANK": str(min(rank, 1)),
        },
    )
    assert len(set(found)) == 1
    assert f"save: no checkpoint can be written under {root}" in found[0]
    assert f"found: rank 1 on {World().hostname}: {why}: {root}/.probe-" in found[0]
    assert "choose another `save`" in found[0]
    assert found[0].endswith(" left: []")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_all_is_well(tmp_path: Path) -> None:
    check_save_folder(tmp_path / "new" / "folder", world=World())
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_what_a_killed_start_left_is_removed_by_the_next(tmp_path: Path) -> None:
    for name, minutes in ((".probe-dead", 11), (".probe-of-a-start-now", 1), ("global_step5", 99)):
        (tmp_path / name).touch()
        then = time.time() - 60 * minutes
        os.utime(tmp_path / name, (then, then))
    with claimed_save_folder(tmp_path, world=World()):
        assert not (tmp_path / ".probe-dead").exists()
    assert set(os.listdir(tmp_path)) == {".probe-of-a-start-now", "global_step5"}
