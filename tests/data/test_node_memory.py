"""``data_impl: cached``: one copy per node, found by its ranks and workers, gone with them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatron.data import memory_file
from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.indexed_dataset import make_dataset
from megatron.data.memory_file import MemoryFile
from megatron.data.node_memory import hold_in_memory
from megatron.data.splits import SampleCounts
from megatron.errors import DataError, NeoXError
from megatron.runtime.world import World
from tests.data.token_files import data_args, letters, write_documents
from tests.support.mounts import require_mounts, use_private_mounts
from tests.support.ranks import run_outcomes, run_ranks

ROOT = Path(__file__).resolve().parents[2]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_tokens_outlive_their_file_and_leave_nothing_open(tmp_path: Path) -> None:
    first = write_documents(tmp_path / "a", letters(5))
    second = write_documents(tmp_path / "b", letters(3), np.int32)
    before = descriptors()
    held = hold_in_memory([make_dataset(first), make_dataset(second)], World())
    assert descriptors() == before + 1  # of the memory file, for both
    for data, documents in zip(held, (5, 3), strict=True):
        Path(f"{data.prefix}.bin").write_bytes(b"")
        assert [row.tolist() for row in data] == letters(documents)
    assert pickle.loads(pickle.dumps(held[1]))[2].tolist() == letters(3)[2]
    row = held[0][4]
    held.clear()
    del data
    assert descriptors() == before
    assert row.tolist() == letters(5)[4]


def test_nobody_can_change_it() -> None:
    memory = MemoryFile.make(4, lambda descriptor: os.pwrite(descriptor, b"abcd", 0) and None)
    owner, descriptor, inode, size = memory.place
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    with pytest.raises(ValueError, match="read-only"):
        memory.content[0] = 1
    with pytest.raises(DataError, match="no longer holds"):
        MemoryFile(owner, descriptor, inode + 1, size)
    with pytest.raises(DataError, match="cannot be reached"):
        MemoryFile(owner, 9_999, inode, size)


def test_short_memory_is_said_before_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_dataset(write_documents(tmp_path / "a", letters(5)))
    before = descriptors()
    monkeypatch.setattr(memory_file, "available_memory", lambda: 100)
    with pytest.raises(NeoXError, match=r"(?s)4,096 bytes of memory.*found: 100.*data_impl: mmap"):
        hold_in_memory([data], World())
    monkeypatch.undo()
    Path(f"{data.prefix}.bin").write_bytes(b"")  # cut after it was opened
    with pytest.raises(NeoXError, match="has 0 bytes now, 110 when it was opened"):
        hold_in_memory([data], World())
    assert descriptors() == before


def _on_two_nodes(world: World, prefix: str) -> tuple[int, bool, list[int]]:
    world = replace(world, node_rank=world.rank // 2, local_rank=world.rank % 2, num_nodes=2)
    data = hold_in_memory([make_dataset(prefix)], world)[0]
    world.barrier()
    owner = data.__reduce__()[1][1].memory.place[0]
    tokens = data[3].tolist()
    world.barrier()
    return owner, owner == os.getpid(), tokens


def test_each_node_holds_one_copy(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", letters(5))
    found = run_ranks(4, _on_two_nodes, str(prefix))
    owners, own, tokens = zip(*found, strict=True)
    assert own == (True, False, True, False)
    assert owners[0] == owners[1] != owners[2] == owners[3]
    assert list(tokens) == [letters(5)[3]] * 4


def _on_a_node_alone(world: World, prefix: str, empty: str) -> list[int]:
    """A node of one process, which cannot find the other node's, as on another machine."""
    pids = world.all_gather(os.getpid())
    use_private_mounts()
    subprocess.run(["mount", "--bind", empty, f"/proc/{pids[1 - world.rank]}"], check=True)
    world.barrier()
    data = hold_in_memory([make_dataset(prefix)], world)[0]
    world.barrier()
    return [int(token) for token in data[3]]


@pytest.mark.ranks
def test_nodes_need_not_see_each_others_processes(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    require_mounts(empty)
    prefix = write_documents(tmp_path / "a", letters(5))
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    found = run_ranks(2, _on_a_node_alone, str(prefix), str(empty), env_of_rank=lambda _: alone)
    assert found == [letters(5)[3]] * 2


def _short_on_one(world: World, prefix: str) -> None:
    world = replace(world, node_rank=world.rank, local_rank=0, num_nodes=2)
    if world.rank == 1:
        memory_file.available_memory = lambda: 7
    hold_in_memory([make_dataset(prefix)], world)


def test_one_short_node_stops_all_with_its_words(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", letters(5))
    for outcome in run_outcomes(2, _short_on_one, str(prefix)):
        assert "found: 7 bytes are available" in (outcome.error or "")


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_samples_are_the_same(tmp_path: Path, impl: str) -> None:
    prefix = write_documents(tmp_path / "a", letters(20))
    wanted = SampleCounts(30, 0, 0)
    datasets = [
        build_datasets(
            DataRequest(
                data_args(prefix, data_impl=impl),
                seq_length=7,
                seed=3,
                wanted=wanted,
            ),
            World(),
        ).train
        for impl in ("infer", impl)
    ]
    assert datasets[0] is not None
    assert datasets[1] is not None
    assert [s.tokens.tolist() for s in datasets[0]] == [s.tokens.tolist() for s in datasets[1]]


@pytest.mark.slow
def test_shared_once_and_gone_after_a_kill(tmp_path: Path) -> None:
    """4 ranks with 2 workers each. What Python itself needs for these weighs more on so little data."""
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, str(ROOT / "tools/benchmarks/sharing.py")]
    done = subprocess.run(
        [*command, "--megabytes", "200", "--folder", str(tmp_path), "--allowed", "1.5"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(os.listdir("/dev/shm")) <= before


def test_the_memory_is_free_once_its_owner_is_killed() -> None:
    size = 64 * 1024 * 1024
    code = (
        "import time; from megatron.data.memory_file import MemoryFile\n"
        f"memory = MemoryFile.make({size}, lambda descriptor: None)\n"
        "print(*memory.place, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        place = [int(number) for number in owner.stdout.readline().split()]
        assert MemoryFile(*place).content.nbytes == size
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    time.sleep(0.1)
    with pytest.raises(DataError, match="cannot be reached"):
        MemoryFile(*place)
