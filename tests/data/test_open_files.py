"""Descriptors: many datasets in a process and its workers do not run into the limit on open files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.data.token_files import letters, write_documents

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import multiprocessing, os, sys
from megatron.data.indexed_dataset import make_dataset
from megatron.data.node_memory import hold_in_memory
from megatron.runtime.world import World

data = [make_dataset(sys.argv[1]) for _ in range(300)]
if sys.argv[2] == "cached":
    data = hold_in_memory(data, World())

def total(_):
    assert len(os.listdir("/proc/self/fd")) < 64
    return sum(int(each[number].sum()) for each in data for number in range(len(each)))

with multiprocessing.get_context("fork").Pool(4) as pool:
    print(sorted(set(pool.map(total, range(4)))))
"""


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_300_datasets_in_4_workers_under_a_limit_of_256(tmp_path: Path, impl: str) -> None:
    prefix = write_documents(tmp_path / "a", letters(3))
    command = ["bash", "-c", 'ulimit -n 256; exec "$@"', "bash", sys.executable, "-c", CODE]
    done = subprocess.run(
        [*command, str(prefix), impl], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"[{300 * sum(range(33))}]"


BLEND = """
import os, sys
from types import SimpleNamespace
from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.loader import build_step_loader
from megatron.data.splits import SampleCounts
from megatron.runtime.world import World
from tests.data.token_files import data_args

paths = tuple(f"{sys.argv[1]}/d{number}" for number in range(300))
args = data_args("", data_path=None, train_data_paths=paths, data_impl=sys.argv[2])
request = DataRequest(args, seq_length=8, seed=1, wanted=SampleCounts(600, 0, 0))
train = build_datasets(request, World()).train
batch = SimpleNamespace(
    global_batch_size=6, micro_batch_size=6, gradient_accumulation_steps=1, data_parallel_size=1
)
most = 0
with build_step_loader(
    train, first_sample=0, num_steps=100, batch=batch, data_rank=0, num_workers=4
) as loader:
    steps = 0
    for step in loader:
        most = max(most, len(os.listdir("/proc/self/fd")))
        assert step.tokens.shape == (1, 6, 9)
        steps += 1
print(steps, most < 128)
"""


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """Not on a disk, where one exists: 300 indexes are flushed some thousand times."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_a_blend_of_300_with_4_workers_under_a_limit_of_256(fast_folder: Path, impl: str) -> None:
    for number in range(300):
        write_documents(fast_folder / f"d{number}", letters(3))
    command = ["bash", "-c", 'ulimit -n 256; exec "$@"', "bash", sys.executable, "-c", BLEND]
    done = subprocess.run(
        [*command, str(fast_folder), impl], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "100 True"
