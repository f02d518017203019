#!/usr/bin/env python
"""Index maps and reading through them: `index.py {build,read} [--documents N] [--tokens N]`.

`build`: seconds and peak memory of the index maps of 10 million documents of 700 tokens on average, 3
epochs, sequence length 2048, from the opening of the data to the maps on disk, flushed and with their
checksums; then a warm start. The `.bin` file is sparse: only its size matters.
`read`: samples a second out of a 1.8 GB file in the page cache, in the shuffled order, as int64.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.data.datasets import DataRequest, build_datasets  # noqa: E402
from megatron.data.index_file import FIELDS, MMAP_MAGIC  # noqa: E402
from megatron.data.sample_dataset import SampleDataset  # noqa: E402
from megatron.data.splits import SampleCounts  # noqa: E402
from megatron.neox_arguments.sections.data import DataArgs  # noqa: E402
from megatron.runtime.world import World  # noqa: E402
from tools.benchmarks.measuring import own_memory  # noqa: E402

Packing = Literal["packed", "unpacked", "pack_until_overflow"]
SEQ_LENGTH = 2048
READ_BYTES = 1_800_000_000


def write_index(prefix: Path, sizes: np.ndarray) -> int:
    """The `.idx` of u16 documents of ``sizes`` tokens; returns the bytes that `.bin` must have."""
    ends = np.cumsum(sizes, dtype=np.int64) * 2
    with open(f"{prefix}.idx", "wb") as file:
        file.write(MMAP_MAGIC + FIELDS.pack(1, 8, len(sizes), len(sizes) + 1))
        file.write(sizes.astype("<i4").data)
        file.write((ends - 2 * sizes).astype("<i8").data)
        file.write(np.arange(len(sizes) + 1, dtype="<i8").data)
    return int(ends[-1])


def open_training_split(prefix: Path, samples: int, packing: Packing = "packed") -> SampleDataset:
    settings = DataArgs(data_path=str(prefix), split="1,0,0", pack_impl=packing)
    wanted = SampleCounts(samples, 0, 0)
    data = build_datasets(
        DataRequest(
            settings,
            seq_length=SEQ_LENGTH,
            seed=1234,
            wanted=wanted,
        ),
        World(),
    )
    assert isinstance(data.train, SampleDataset)  # one file, no blend
    return data.train


def build(prefix: Path, documents: int, tokens: int, packing: Packing) -> str:
    sizes = np.random.default_rng(0).integers(1, 2 * tokens, documents)
    size = write_index(prefix, sizes)
    del sizes
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(size)
    samples = 3 * (size // 2) // SEQ_LENGTH - 1
    before = own_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    start = time.perf_counter()
    dataset = open_training_split(prefix, samples, packing)
    seconds, growth = time.perf_counter() - start, own_memory("VmHWM") - before
    written = sum(path.stat().st_size for path in dataset.maps.folder.glob("*.npy"))
    del dataset
    start = time.perf_counter()
    open_training_split(prefix, samples, packing)
    warm = time.perf_counter() - start
    return (
        f"build ({packing}): {documents:,} documents, {samples:,} samples: {seconds:.2f} s, peak memory "
        f"+{growth / 1e6:,.0f} MB for {written / 1e6:,.0f} MB of output ({growth / written:.2f} x); warm "
        f"start {warm:.3f} s"
    )


def read(prefix: Path, tokens: int, reads: int) -> str:
    size = write_index(prefix, np.full(READ_BYTES // 2 // tokens, tokens, np.int64))
    block = np.random.default_rng(0).integers(0, 50_000, 1 << 22, np.uint16).tobytes()
    with open(f"{prefix}.bin", "wb") as file:
        for at in range(0, size, len(block)):
            file.write(block[: size - at])
    dataset = open_training_split(prefix, 1)
    int(dataset.data.tokens.max())  # all of it is in the page cache and mapped
    rates = []
    for turn in range(3):
        start = time.perf_counter()
        for number in range(turn * reads, (turn + 1) * reads):
            dataset[number % len(dataset)]
        rates.append(reads / (time.perf_counter() - start))
    return (
        f"read: documents of {tokens:,} tokens: {sorted(rates)[1]:,.0f} samples/s of {SEQ_LENGTH + 1:,} "
        f"tokens (median of 3 x {reads:,}; CPU time {resource.getrusage(0).ru_utime:.0f} s in all)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["build", "read"])
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--tokens", type=int, help="of a document: 700 (build), 5000 (read)")
    parser.add_argument(
        "--packing", choices=["packed", "unpacked", "pack_until_overflow"], default="packed"
    )
    parser.add_argument("--reads", type=int, default=50_000)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=parsed.folder) as folder:
        prefix = Path(folder) / "data"
        if parsed.what == "build":
            text = build(prefix, parsed.documents, parsed.tokens or 700, parsed.packing)
        else:
            text = read(prefix, parsed.tokens or 5_000, parsed.reads)
    print(text)


if __name__ == "__main__":
    main()
