"""The memory that is estimated is the memory that a run takes beside the program itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatron.data.indexed_dataset import MMapIndexedDataset
from tests.data.token_files import write_documents
from tests.support.doors import ROOT, finish, start

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

# The same program with hardly a model: what it takes is not the model's.
NEXT_TO_NOTHING = {
    "num_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "seq_length": 8,
    "max_position_embeddings": 8,
    "train_micro_batch_size_per_gpu": 1,
}
UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def run(folder: Path, **changes: object) -> tuple[float, float]:
    """Estimated and held memory of rank 0 in a short run of the quickstart's model, in MiB."""
    few = {"train_iters": 30, "log_interval": 10, "eval_iters": 0, "split": "1,0,0"}
    nothing_kept = dict.fromkeys(("save", "load", "tensorboard_dir", "log_dir"), "null")
    files = {
        "data_path": folder / "text",
        "vocab_file": ROOT / "tools" / "quickstart" / "tokenizer.json",
    }
    settings = few | nothing_kept | files | changes
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    config = str(ROOT / "configs" / "quickstart.yml")
    done = finish(start("deepy.py", "train.py", config, *overrides, folder=folder), timeout=300)
    assert done.status == 0, done.all
    estimated = re.findall(r"memory +about ([\d.]+) (\wiB)", done.out)
    held = re.findall(r"\| mem ([\d.]+) (\wiB)", done.out)
    return tuple(float(number) * UNITS[unit] for number, unit in (estimated[-1], held[-1]))  # type: ignore[return-value]


def test_the_quickstart_takes_what_is_estimated(tmp_path: Path) -> None:
    write_documents(tmp_path / "text", [[i % 2000 for i in range(5000)]] * 40)
    assert len(MMapIndexedDataset(str(tmp_path / "text"))) == 40
    estimated, held = run(tmp_path)
    least_estimated, least_held = run(tmp_path, **NEXT_TO_NOTHING)
    growth = held - least_held
    print(f"estimated {estimated - least_estimated:.1f} MiB, measured {growth:.1f} MiB")
    assert estimated - least_estimated == pytest.approx(growth, rel=0.25)
