"""Protects runs on nodes with disks of their own from token files that are not the same everywhere.

Three nodes of one rank each, whose data lie in folders of their own, go through one case after another.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.index_store import IndexStore
from megatron.data.indexed_dataset import make_dataset
from megatron.data.splits import SampleCounts
from megatron.errors import NeoXError
from megatron.runtime.world import World
from tests.data.token_files import data_args, letters, write_documents
from tests.support.mounts import move_to_own_disk, require_mounts
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.ranks

NODES = 3
MEGABYTE = 1 << 20


def own_node(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def overwrite(path: Path, at: int, content: bytes) -> None:
    """Change bytes and keep what a copy keeps: the size, and the time of the content."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def one_byte_in_the_middle(node: Path) -> None:
    overwrite(node / "a.bin", (node / "a.bin").stat().st_size // 2, b"\xff")


def other_lengths(node: Path) -> None:
    write_documents(node / "a", letters(11, length=10))


def no_documents_for_validation(node: Path) -> None:
    write_documents(node / "a", letters(2, length=50))


def a_hole_of_a_fifteenth(node: Path) -> None:
    """What a copy leaves that was cut in one of its streams: zeros."""
    overwrite(node / "large.bin", MEGABYTE // 3, bytes(MEGABYTE // 15 + 4096))


def a_label(node: Path) -> None:
    overwrite(node / "labels.bin", 8, b"\x00")


def two_of_the_blend(node: Path) -> None:
    for name in ("a.bin", "b.bin"):
        overwrite(node / name, 0, b"\xfe")


def nothing(node: Path) -> None:
    pass


def a_link(node: Path) -> None:
    """The same files, by another name."""
    node.rename(node.with_name(f"{node.name}-elsewhere"))
    node.symlink_to(node.with_name(f"{node.name}-elsewhere"))


# Case → what is done to which nodes' files, and the keys that name them beside data_path or instead.
Case = tuple[Callable[[Path], None], tuple[int, ...], tuple[str, ...]]
BLEND = ("train_data_paths", "a", "b", "large")
CASES: dict[str, Case] = {
    "same": (nothing, (), ("data_path", "a")),
    "link": (a_link, (1,), ("data_path", "a")),
    "one byte": (one_byte_in_the_middle, (2,), ("data_path", "a")),
    "first differs": (one_byte_in_the_middle, (0,), ("data_path", "a")),
    "lengths": (other_lengths, (1,), ("data_path", "a")),
    "no validation": (no_documents_for_validation, (1,), ("data_path", "a")),
    "no validation first": (no_documents_for_validation, (0,), ("data_path", "a")),
    "hole": (a_hole_of_a_fifteenth, (1,), ("data_path", "large")),
    "labels": (a_label, (2,), ("train_data_paths", "a")),
    "blend": (two_of_the_blend, (1, 2), BLEND),
}


def prepare(root: Path) -> None:
    first = root / "files"
    write_documents(first / "a", letters(10))
    write_documents(first / "b", letters(12))
    write_documents(first / "labels", letters(10))
    noise = np.random.default_rng(0).integers(1, 255, MEGABYTE // 2)
    write_documents(first / "large", noise.reshape(64, -1).tolist())
    for case, (change, nodes, _) in CASES.items():
        for node in range(NODES):
            shutil.copytree(first, root / case / str(node))
            if node in nodes:
                change(root / case / str(node))


def says(world: World, node: Path, key: str, *names: str) -> str:
    """How the start ends: an empty text if all is well."""
    paths = [str(node / name) for name in names]
    given = {"data_path": paths[0]} if key == "data_path" else {"data_path": None, key: paths}
    if key == "train_data_paths" and names == ("a",):
        given["train_label_data_paths"] = [str(node / "labels")]
    try:
        build_datasets(
            DataRequest(
                data_args(node, use_shared_fs=False, split="80,20,0", **given),
                seq_length=8,
                seed=1234,
                wanted=SampleCounts(6, 2 if key == "data_path" else 0, 0),
            ),
            world,
        )
    except NeoXError as error:
        return str(error)
    return ""


def all_cases(world: World, root: Path) -> dict[str, str]:
    return {
        case: says(world, root / case / str(world.rank), *files)
        for case, (_, _, files) in CASES.items()
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Case → what each rank said."""
    root = tmp_path_factory.mktemp("nodes")
    prepare(root)
    found = run_ranks(NODES, all_cases, root, env_of_rank=own_node)
    return {case: [rank[case] for rank in found] for case in CASES}


@pytest.mark.parametrize("case", ["same", "link"])
def test_the_same_files_are_no_difference(said: dict[str, list[str]], case: str) -> None:
    assert said[case] == [""] * NODES


def groups(text: str) -> list[list[int]]:
    """The nodes that a message says to be alike."""
    found = text.split("found: ")[1].split("\n")[0]
    return [[int(n) for n in re.findall(r"(\d+) \(", part)] for part in found.split(", another ")]


@pytest.mark.parametrize(
    ("case", "where", "alike"),
    [
        ("one byte", "2/a.bin", [[0, 1], [2]]),
        ("first differs", "1/a.bin", [[0], [1, 2]]),
        ("lengths", "1/a.bin", [[0, 2], [1]]),
        ("no validation", "1/a.bin", [[0, 2], [1]]),
        ("no validation first", "1/a.bin", [[0], [1, 2]]),
        ("hole", "1/large.bin", [[0, 2], [1]]),
        ("labels", "2/a.bin", [[0, 1], [2]]),
        ("blend", "1/a.bin and 1 more", [[0], [1, 2]]),
    ],
)
def test_what_differs_is_said_by_all(
    said: dict[str, list[str]], case: str, where: str, alike: list[list[int]]
) -> None:
    texts = said[case]
    assert texts == [texts[0]] * NODES
    assert f"{case}/{where}: the token files differ between the nodes" in texts[0]
    assert groups(texts[0]) == alike


def repaired(world: World, root: Path) -> tuple[str, str]:
    """A start with a damaged copy, and one after it was copied once more, with the time of the first."""
    node = root / str(world.rank)
    write_documents(node / "a", letters(10))
    if world.rank == 1:
        one_byte_in_the_middle(node)
    before = says(world, node, "data_path", "a")
    if world.rank == 1:
        overwrite(node / "a.bin", 0, (root / "0" / "a.bin").read_bytes())
    world.barrier()
    return before, says(world, node, "data_path", "a")


def test_a_copy_is_looked_at_again_once_it_is_repaired(tmp_path: Path) -> None:
    for before, after in run_ranks(2, repaired, tmp_path, env_of_rank=own_node):
        assert "differ between the nodes" in before
        assert after == ""


def one_index_for_all(world: World, disk: Path, index: Path) -> str:
    """Disks of their own at one path, whose files have the same size and time; the index on a shared one."""
    move_to_own_disk(disk)
    for rank in range(world.size):  # one after the other, as copies are
        if rank == world.rank:
            write_documents(disk / "a", letters(10))
            if rank == 1:
                one_byte_in_the_middle(disk)
            for name in ("a.bin", "a.idx"):
                os.utime(disk / name, ns=(10**18, 10**18))
            time.sleep(0.1)
            IndexStore(index).content(make_dataset(str(disk / "a"), "mmap"))
        world.barrier()
    try:
        build_datasets(
            DataRequest(
                data_args(disk / "a", use_shared_fs=False, index_cache_dir=str(index)),
                seq_length=8,
                seed=1234,
                wanted=SampleCounts(6, 0, 0),
            ),
            world,
        )
    except NeoXError as error:
        return str(error)
    return ""


def test_what_a_node_knows_of_its_files_is_not_taken_for_anothers(tmp_path: Path) -> None:
    for name in ("disk", "index"):
        (tmp_path / name).mkdir()
    require_mounts(tmp_path / "disk")
    places = (tmp_path / "disk", tmp_path / "index")
    for text in run_ranks(2, one_index_for_all, *places, env_of_rank=own_node):
        assert "differ between the nodes" in text
