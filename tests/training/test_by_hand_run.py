"""Protects a file that a user of GPT-NeoX wrote by hand: with fp16 in it, it trains, at a tiny size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.run import run_training
from tests.neox_arguments.test_by_hand import IN_FP16
from tests.support.ranks import run_ranks
from tests.support.tiny import series, write_tokens

STEPS = 20


def tiny_by_hand(folder: Path) -> dict[str, Any]:
    """What a user would set on the command line to try the file on a laptop."""
    return {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 16,
        "max_position_embeddings": 16,
        "rotary_pct": 0.5,
        "train_iters": STEPS,
        "lr_decay_iters": STEPS,
        "eval_interval": STEPS,
        "eval_iters": 1,
        "log_interval": 1,
        "tokenizer_type": "CharLevelTokenizer",
        "data_path": str(folder / "data" / "tiny"),
        "split": "80,10,10",
        "num_workers": 0,
        "distributed_backend": "gloo",
        "optimizer.params.lr": 0.01,
        "save": str(folder / "checkpoints"),
        "load": str(folder / "checkpoints"),
        "tensorboard_dir": str(folder / "tensorboard"),
        "log_dir": str(folder / "logs"),
    }


def train(world: World, files: list[Path], overrides: list[str]) -> tuple[str, int]:
    args = NeoXArgs.from_ymls(files, overrides, world_size=world.size)
    return args.model.precision, run_training(args, world).step


@pytest.mark.ranks
def test_a_file_in_fp16_trains(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    (tmp_path / "by_hand.yml").write_text(IN_FP16)
    overrides = [f"{key}={value}" for key, value in tiny_by_hand(tmp_path).items()]
    found = run_ranks(1, train, [tmp_path / "by_hand.yml"], overrides)
    assert found == [("fp16", STEPS)]
    losses = series(tmp_path / "logs", "train/lm_loss")
    skipped = series(tmp_path / "logs", "train/skipped_iterations")
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    assert sum(skipped) == 0
    assert set(series(tmp_path / "logs", "train/loss_scale")) == {2.0**16}
