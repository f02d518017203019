"""Protects that the number of ranks changes neither which samples a step reads nor the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.loader import build_step_loader
from megatron.data.splits import samples_wanted
from megatron.mpu import ParallelGroups
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.run import run_training
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens

STEPS, BATCH = 12, 8
# With a validation half-way and at the end.
EVERY = 6
# Ranks and ZeRO stage.
LAYOUTS = [(1, 1), (4, 1), (2, 0)]
KEPT_APART = {"reset_position_ids": True, "reset_attention_mask": True}
# The norm of the gradient is above this in some steps and below it in others.
CLIPPING = 0.7


def read_and_train(world: World, config: dict[str, Any], *more: dict[str, Any]) -> list[list[int]]:
    """The numbers of the samples that each step reads, over all ranks in order; then train."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    batch = args.batch_sizes(world.size)
    data = build_datasets(
        DataRequest(
            args.data,
            seq_length=args.model.seq_length,
            seed=args.training.seed,
            wanted=samples_wanted(STEPS, EVERY, 2, BATCH),
        ),
        world,
    )
    assert data.train is not None
    numbers = {data.train[i].tokens.tobytes(): i for i in range(STEPS * BATCH)}
    assert len(numbers) == STEPS * BATCH, "the corpus must have no two equal samples"
    loader = build_step_loader(
        data.train,
        first_sample=0,
        num_steps=STEPS,
        batch=batch,
        data_rank=ParallelGroups(world).get_data_parallel_rank(),
        num_workers=0,
    )
    order = []
    for step in loader:
        mine = [[numbers[row.numpy().tobytes()] for row in micro] for micro in step.tokens]
        everyone = world.all_gather(mine)
        # Micro-batch by micro-batch, rank by rank.
        order.append([n for micro in zip(*everyone, strict=True) for part in micro for n in part])
    run_training(args, world)
    for other in more:
        run_training(NeoXArgs.from_dict(other, world_size=world.size), world)
    return order


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    write_tokens(folder / "data" / "tiny", documents=120)
    for ranks, stage in LAYOUTS:
        place = str(folder / f"{ranks}-zero{stage}")
        config = tiny_config(
            folder,
            save=place,
            load=None,
            train_micro_batch_size_per_gpu=1,
            train_batch_size=BATCH,
            train_iters=STEPS,
            eval_interval=EVERY,
            zero_optimization={"stage": stage},
            gradient_clipping=CLIPPING,
        )
        configs = [config, config | KEPT_APART | {"save": f"{place}-apart"}] if stage else [config]
        for order in run_ranks(ranks, read_and_train, *configs):
            expected = np.arange(STEPS * BATCH).reshape(STEPS, BATCH).tolist()
            assert order == expected, f"{ranks} ranks"
    return folder


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["train/lm_loss", "train/grad_norm", "validation/lm_loss"])
def test_one_two_and_four_ranks_agree(runs: Path, name: str) -> None:
    one = series(runs / "1-zero1", name)
    assert len(one) == (STEPS if name.startswith("train") else 2)
    for ranks, stage in LAYOUTS:
        assert series(runs / f"{ranks}-zero{stage}", name) == pytest.approx(one, rel=1e-5), ranks


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["train/lm_loss", "train/grad_norm", "validation/lm_loss"])
def test_they_agree_on_documents_that_are_kept_apart(runs: Path, name: str) -> None:
    one = series(runs / "1-zero1-apart", name)
    together = series(runs / "1-zero1", name)
    assert all(a != b for a, b in zip(one, together, strict=True))
    assert series(runs / "4-zero1-apart", name) == pytest.approx(one, rel=1e-5)


@pytest.mark.ranks
def test_the_loss_falls(runs: Path) -> None:
    losses = series(runs / "1-zero1", "train/lm_loss")
    assert losses[0] > losses[-1]
