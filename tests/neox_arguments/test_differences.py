"""Two configurations side by side, as values and as tools/config/diff.py shows them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.differences import differences
from tests.support.doors import ROOT
from tests.support.small_config import small


def flat(**changes: object) -> dict[str, object]:
    return NeoXArgs.from_dict(small(**changes)).flat()


def test_keys_that_differ_in_order_and_once() -> None:
    found = differences(
        flat(),
        flat(
            optimizer={"type": "Adam", "params": {"lr": 0.002, "betas": [0.9, 0.99]}},
            zero_optimization={"stage": 1, "overlap_comm": True},
            num_layers=4,
            attention_config=None,
        ),
    )
    assert [str(difference) for difference in found] == [
        "attention_config: [[['global'], 2]] → null",
        "lr: 0.001 → 0.002",
        "num_layers: 2 → 4",
        "optimizer.params.betas: [0.9, 0.95] → [0.9, 0.99]",
        "optimizer.params.eps: 1e-08 → (not there)",
        "zero_optimization.overlap_comm: (not there) → true",
        "zero_stage: 0 → 1",
    ]
    assert differences(flat(), flat(**{"train-iters": 3, "train_iters": ...})) == []


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, str(ROOT / "tools/config/diff.py"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_tool(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(yaml.safe_dump(small()))
    (tmp_path / "shape.yml").write_text(yaml.safe_dump(small(seed=..., train_iters=...)))
    (tmp_path / "rest.yml").write_text("train_iters: 5\n")
    assert run(tmp_path, "a.yml", "shape.yml,rest") == (1, "train_iters: 3 → 5\n", "")
    assert run(tmp_path, "a.yml", "shape,rest", "--set", "train_iters=3") == (0, "", "")
    folder = tmp_path / "ckpt" / "global_step3" / "configs"
    folder.mkdir(parents=True)
    (tmp_path / "ckpt" / "latest").write_text("global_step3")
    (folder / "effective_config.json").write_text(json.dumps(flat(seed=9)))
    for checkpoint in ("ckpt", "ckpt/global_step3"):
        assert run(tmp_path, "a.yml", checkpoint) == (1, "seed: 1234 → 9\n", "")
        assert run(tmp_path, "a.yml", checkpoint, "--set", "seed=1234") == (0, "", "")
    status, _, said = run(tmp_path, "a.yml", "ckpt", "--set", "sed=3")
    assert (status, said) == (2, "error: command line: sed: unknown key; did you mean seed?\n")
    status, _, said = run(tmp_path, "a.yml", "ckpt/global_step3/configs")
    assert status == 2
    assert said.startswith("error: ckpt/global_step3/configs/configs/effective_config.json: cannot")
