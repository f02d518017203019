"""Protects exact resume: a run that was stopped gives the numbers of one that was not, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.run import run_training
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens

EXACT = ("train/lm_loss", "train/learning_rate", "train/grad_norm", "validation/lm_loss")


def train_all(world: World, configs: list[dict[str, Any]]) -> list[int]:
    """Several runs after one another in one world; the steps that each one reached."""
    return [
        run_training(NeoXArgs.from_dict(config, world_size=world.size), world).step
        for config in configs
    ]


@pytest.mark.ranks
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("precision", ["fp32", "bfloat16"])
def test_ten_and_ten_steps_equal_twenty(tmp_path: Path, precision: str, stage: int) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    shared = {
        "precision": precision,
        "zero_optimization": {"stage": stage},
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "gradient_accumulation_steps": 2,
        "log_interval": 4,  # 10 is in the middle of an interval
        "num_workers": 1,
    }
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    config = tiny_config(tmp_path, **shared)
    config_whole = config | {"save": str(whole), "load": str(whole)}
    config_halves = config | {"save": str(halves), "load": str(halves)}
    assert run_ranks(2, train_all, [config_whole]) == [[20]] * 2
    assert run_ranks(2, train_all, [config_halves | {"exit_interval": 10}]) == [[10]] * 2
    assert len(series(halves, "train/lm_loss")) == 2
    # New processes: nothing but the files is carried over.
    assert run_ranks(2, train_all, [config_halves]) == [[20]] * 2
    for name in EXACT:
        assert series(halves, name) == series(whole, name), name
    assert len(series(whole, "train/lm_loss")) == 5
