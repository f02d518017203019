#!/usr/bin/env python
"""What `data_impl` costs in memory: `sharing.py [--impl cached|mmap] [--megabytes 500] [--ranks 4]`.

Starts the ranks of one node, notes their proportional set size (a page that n processes map counts
1/n in each), opens a dataset, forks two readers in each rank as its loader would, lets all of them
read every token, and notes it again. Then it kills all with SIGKILL, once now and once while a second
set of ranks opens the data, and looks for what is left. Ends with status 1 if the growth is over
`--allowed` times the data, or anything is left.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.data.indexed_dataset import (  # noqa: E402
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    make_dataset,
)
from megatron.data.node_memory import hold_in_memory  # noqa: E402
from megatron.runtime.parent import end_with_parent  # noqa: E402
from megatron.runtime.process import start_process  # noqa: E402
from tools.benchmarks.measuring import environments_of_ranks  # noqa: E402

WORKERS = 2
DOCUMENT = 5_000  # tokens


def write_data(prefix: Path, megabytes: int) -> None:
    documents = max(1, megabytes * 10**6 // 2 // DOCUMENT)
    random = np.random.default_rng(0)
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", np.uint16) as builder:
        for _ in range(documents):
            builder.add_item(random.integers(0, 50_000, DOCUMENT, np.uint16))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def read_all(data: MMapIndexedDataset) -> int:
    step = 1 << 20
    return sum(int(data.tokens[at : at + step].sum()) for at in range(0, data.num_tokens, step))


def _worker(data: MMapIndexedDataset, expected: int, done: object) -> None:
    end_with_parent(signal.SIGKILL)
    assert read_all(data) == expected
    done.release()  # type: ignore[attr-defined]
    signal.pause()


def rank_main(prefix: str, impl: str) -> None:
    """One rank: says its process id, waits for a line, opens and reads, says all ids, stays."""
    end_with_parent(signal.SIGKILL)
    world = start_process()
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    data = make_dataset(prefix, impl)
    if impl == "cached":
        data = hold_in_memory([data], world)[0]
    total = read_all(data)
    context = multiprocessing.get_context("fork")
    done = context.Semaphore(0)
    workers = [context.Process(target=_worker, args=(data, total, done)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for _ in workers:
        done.acquire()
    print("read", os.getpid(), *(worker.pid for worker in workers), flush=True)
    signal.pause()


class Ranks:
    """The processes of one node, killed at the end of a `with` block."""

    def __init__(self, count: int, prefix: Path, impl: str) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(prefix), "--impl", impl],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | environment,
            )
            for environment in environments_of_ranks(count)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()

    def listen(self, word: str) -> list[int]:
        """Wait until each rank has said ``word``; the process ids that they say with it."""
        ids: list[int] = []
        for process in self.processes:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(word + " "):
                    ids += map(int, line.split()[1:])
                    break
            else:
                raise SystemExit("a rank has died")
        return ids

    def go_on(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()


def proportional_size(ids: list[int]) -> int:
    """Bytes that the processes hold together, shared ones counted once."""
    total = 0
    for number in ids:
        for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def shared_memory() -> int:
    """Bytes of shared memory on this machine, with a name or without."""
    return int(Path("/proc/meminfo").read_text().split("Shmem:")[1].split()[0]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", choices=["mmap", "cached"], default="cached")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--allowed", type=float, default=1.3, help="growth, in sizes of the data")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rank", metavar="PREFIX", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.rank:
        rank_main(parsed.rank, parsed.impl)
        return 0
    with tempfile.TemporaryDirectory(dir=parsed.folder) as folder:
        return measure(Path(folder) / "data", parsed)


def measure(prefix: Path, parsed: argparse.Namespace) -> int:
    write_data(prefix, parsed.megabytes)
    size = Path(f"{prefix}.bin").stat().st_size
    names, shared = set(os.listdir("/dev/shm")), shared_memory()
    with Ranks(parsed.ranks, prefix, parsed.impl) as ranks:
        before = proportional_size(ranks.listen("ready"))
        start = time.monotonic()
        ranks.go_on()
        ids = ranks.listen("read")
        seconds = time.monotonic() - start
        growth = (proportional_size(ids) - before) / size
        held = shared_memory() - shared
    with Ranks(parsed.ranks, prefix, parsed.impl) as ranks:
        ranks.listen("ready")
        ranks.go_on()
        time.sleep(0.05)  # the memory is being filled
    time.sleep(1.0)  # the kernel takes large memory apart after the processes are gone
    left, new_names = shared_memory() - shared, set(os.listdir("/dev/shm")) - names
    print(
        f"data_impl: {parsed.impl}, {size / 1e6:,.0f} MB, {parsed.ranks} ranks x {WORKERS} workers: "
        f"growth {growth:.3f} of the data (allowed: {parsed.allowed}), opened and read by all in "
        f"{seconds:.1f} s\nshared memory: {held / 1e6:,.0f} MB while they ran, {left / 1e6:,.0f} MB "
        f"after kill -9, later and at start-up; new names in /dev/shm: {sorted(new_names) or 'none'}"
    )
    return int(growth > parsed.allowed or left > size / 2 or bool(new_names))


if __name__ == "__main__":
    sys.exit(main())
