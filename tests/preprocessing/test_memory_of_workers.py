"""Peak memory of a run does not grow with its input."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tools" / "quickstart" / "corpus.jsonl"


def peak(pid: int) -> int:
    """The most memory that a process has held so far, in bytes; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def peak_of_a_run(folder: Path, copies: int) -> int:
    """Of the parent and both workers together, each at its own worst time, in bytes."""
    options = ["--output-prefix", str(folder / "out"), "--workers", "2", "--append-eod"]
    tokenizer = ["--tokenizer-type", "HFTokenizer", "--vocab-file"]
    process = subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "tools/datasets/preprocess_data.py")),
            *("--input", *[str(CORPUS)] * copies, *options),
            *(*tokenizer, str(ROOT / "tests/assets/neox20b/20B_tokenizer.json")),
        ],
        stdout=subprocess.DEVNULL,
    )
    peaks: dict[int, int] = {}
    while process.poll() is None:
        workers = ""
        with contextlib.suppress(OSError):
            workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        for pid in (process.pid, *map(int, workers.split())):
            peaks[pid] = max(peaks.get(pid, 0), peak(pid))
        time.sleep(0.02)
    assert process.returncode == 0
    assert len(peaks) >= 3
    return sum(peaks.values())


@pytest.mark.slow
@pytest.mark.ranks
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    small, large = (peak_of_a_run(tmp_path, copies) for copies in (4, 20))
    assert large < 600e6
    assert large < small + 40e6
