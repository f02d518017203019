"""Descriptors: many datasets in a process and its workers do not run into the limit on open files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
