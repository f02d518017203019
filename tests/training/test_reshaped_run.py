"""Protects that a run goes on from a checkpoint of another layout: losses, learning rate and samples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.checkpointing.reshard import main as reshard_command
from megatron.errors import CheckpointError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.run import run_training
from megatron.training.setup import build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens

SERIES = ("train/lm_loss", "train/learning_rate", "train/grad_norm", "validation/lm_loss")
COMMAND = re.compile(r"python tools/ckpts/reshard.py (.*)")
TENSOR = {"model_parallel_size": 2, "train_micro_batch_size_per_gpu": 4}
DATA = {"model_parallel_size": 1, "train_micro_batch_size_per_gpu": 2}


def config_of(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Eight steps, saved under ``name``."""
    place = str(folder / name)
    settings = {"train_iters": 8, "eval_interval": 4, "eval_iters": 1}
    return tiny_config(folder, **({"save": place, "load": place} | settings | changes))


def train(world: World, config: dict[str, Any]) -> int:
    return run_training(NeoXArgs.from_dict(config, world_size=world.size), world).step


def weights_of(world: World, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """This rank's weights, as an evaluation or a sample has them."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    model, _ = load_trained_model(args, build_parts(args, world))
    return model.state_dict()


def reshaped(world: World, folder: Path) -> tuple[str, list[int]]:
    """Train, and go on in every way. What another layout is told, and the steps reached."""
    train(world, config_of(folder, "straight", **TENSOR))
    train(world, config_of(folder, "tensor", **TENSOR, exit_interval=4))
    start = {"load": str(folder / "tensor")}
    other = DATA | {"zero_optimization": {"stage": 2}}
    with pytest.raises(CheckpointError) as refused:
        train(world, config_of(folder, "refused", **start, **other))
    # Told to, it loads the files of the other ranks.
    steps = [train(world, config_of(folder, "direct", **start, **other, reshape_on_load=True))]
    # Or what the command made of them, whose name it was told.
    command = COMMAND.search(str(refused.value))
    assert command is not None
    if world.is_first:
        reshard_command(shlex.split(command[1]))
    world.barrier()
    whole = {"load": str(folder / "tensor-whole")}
    part = {"zero_optimization": {"stage": 3}}
    steps.append(train(world, config_of(folder, "partitioned", **whole, **DATA, **part)))
    steps.append(train(world, config_of(folder, "same", **whole, **TENSOR)))
    half = {"precision": "bfloat16", "train_iters": 8}
    steps.append(train(world, config_of(folder, "half", **whole, **other, **half)))
    tuned = {"finetune": True, "train_iters": 2, "eval_iters": 0}
    steps.append(train(world, config_of(folder, "tuned", **whole, **other, **tuned)))
    shuffled = DATA | {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}
    train(world, config_of(folder, "shuffled", **shuffled, exit_interval=1))
    for load, settings in (("shuffled", TENSOR), ("tensor", shuffled)):
        with pytest.raises(CheckpointError, match="round_robin_gradients"):
            train(
                world,
                config_of(
                    folder, "never", load=str(folder / load), **settings, reshape_on_load=True
                ),
            )
    # Weights alone need no word.
    texts = {
        name: weights_of(world, config_of(folder, name, **settings))
        for name, settings in {
            "own": TENSOR | start,
            "split": TENSOR | whole,
            "joined": DATA | start,
            "whole": DATA | whole,
        }.items()
    }
    for one, two in (("own", "split"), ("joined", "whole")):
        assert texts[one].keys() == texts[two].keys()
        assert all(torch.equal(value, texts[two][name]) for name, value in texts[one].items())
    return str(refused.value), steps


@pytest.mark.ranks
def test_a_run_goes_on_in_another_layout(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    (said, steps), _ = run_ranks(2, reshaped, tmp_path)
    assert "set reshape_on_load: true" in said
    assert "model_parallel_size 2, this run has 1" in said
    assert steps == [8, 8, 8, 8, 2]
    for name in SERIES:
        expected = series(tmp_path / "straight", name)
        for place in ("direct", "partitioned", "same"):
            found = series(tmp_path / place, name)
            assert found == pytest.approx(expected[-len(found) :], rel=1e-5), (place, name)
            assert len(found) == (1 if name.startswith("validation") else 4)
    losses = series(tmp_path / "straight", "train/lm_loss")
    assert series(tmp_path / "half", "train/lm_loss") == pytest.approx(losses[4:], rel=2e-2)
    assert series(tmp_path / "tuned", "train/lm_loss")[0] < losses[0]
