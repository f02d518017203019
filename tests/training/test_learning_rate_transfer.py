"""Protects what muP is for: the learning rate that is best for a narrow model is best for a wide one.

Mean loss of the last 5 of 40 steps on a text whose every token tells the next one, nine times in ten:

    learning rate     2^-4   2^-5   2^-6   2^-7   2^-8   2^-9
    muP, 32 wide      0.814  0.824  0.794  0.759  1.222  2.597
    muP, 256 wide     0.801  0.787  0.705  0.677  0.918  2.172
    standard, 256     1.787  1.005  0.839  0.781  0.738  0.722
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from megatron.data.step_batch import StepBatch
from megatron.model import shapes_of, write_base_shapes
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.setup import build_engine, build_model, build_parts
from megatron.training.step import StepSettings, train_step
from tests.support.ranks import run_ranks
from tests.support.tiny import tiny_config

STEPS, BATCH, LENGTH, IDS = 40, 16, 32, 64
RATES = (2.0**-5, 2.0**-7, 2.0**-9)
Run = tuple[bool, int, float]  # muP or not, width, learning rate


def text(step: int) -> StepBatch:
    follows = torch.randperm(IDS, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, IDS, (1, BATCH, LENGTH + 1), generator=generator)
    for place in range(1, LENGTH + 1):
        told = torch.rand(1, BATCH, generator=generator) < 0.9
        tokens[..., place] = torch.where(told, follows[tokens[..., place - 1]], tokens[..., place])
    mask = torch.ones(1, BATCH, LENGTH, dtype=torch.bool)
    return StepBatch(tokens, mask, first_sample=0, num_samples=BATCH)


def config_of(folder: Path, width: int, rate: float, mup: bool) -> NeoXArgs:
    return NeoXArgs.from_dict(
        tiny_config(
            folder,
            hidden_size=width,
            seq_length=LENGTH,
            max_position_embeddings=LENGTH,
            train_batch_size=BATCH,
            train_micro_batch_size_per_gpu=BATCH,
            zero_optimization={"stage": 0},
            init_method="small_init",
            output_layer_init_method="small_init",
            min_lr=0.0,
            weight_decay=0.0,
            optimizer={"type": "Adam", "params": {"lr": rate, "betas": [0.9, 0.95], "eps": 1e-8}},
            use_mup=mup,
            base_shapes_file=str(folder / "base.yml"),
        ),
        world_size=1,
    )


def losses(world: World, runs: list[Run], folder: Path) -> dict[Run, float]:
    batches, found = [text(step) for step in range(STEPS)], {}
    for mup, width, rate in runs:
        args = config_of(folder, width, rate, mup)
        parts = build_parts(args, world)
        narrow = config_of(folder, 32, rate, False).model
        write_base_shapes(folder / "base.yml", shapes_of(narrow, parts.padded_vocab))
        engine = build_engine(args, parts, build_model(args, parts))
        engine.train()
        settings = StepSettings(parts.device, parts.groups, seed=1, has_dropout=False, zero_stage=0)
        of_steps = [
            # Warm-up over ten steps.
            train_step(
                engine, batch, settings, step=step, learning_rate=rate * min(1.0, (step + 1) / 10)
            ).loss
            for step, batch in enumerate(batches)
        ]
        found[mup, width, rate] = sum(of_steps[-5:]) / 5
    return found


@pytest.mark.slow
@pytest.mark.ranks
def test_the_best_learning_rate_is_that_of_the_narrow_model(tmp_path: Path) -> None:
    runs = [(mup, width, rate) for mup in (True, False) for width in (32, 256) for rate in RATES]
    (found,) = run_ranks(1, losses, runs, tmp_path)

    def best(mup: bool, width: int) -> float:
        return min(RATES, key=lambda rate: found[mup, width, rate])

    assert best(True, 32) == best(True, 256) == best(False, 32) == 2.0**-7
    assert best(False, 256) < 2.0**-7
    # Wider is better, too, at the rate that was found on the narrow model.
    assert found[True, 256, 2.0**-7] < found[True, 32, 2.0**-7] < found[False, 256, 2.0**-7]
