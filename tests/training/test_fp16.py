"""Protects fp16: overflows are skipped by all ranks alike, and a resumed run goes on to the last bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.data.step_batch import StepBatch
from megatron.errors import TrainingError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.partitioned import gathered
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.run import run_training
from megatron.training.setup import build_engine, build_model, build_parts, build_schedule
from megatron.training.step import MOST_SKIPS, StepSettings, give_up_after, train_step
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens

# A first loss scale of 2^26 overflows a few times, and one that doubles every 3 steps does so again.
SCALING = {
    "enabled": True,
    "loss_scale": 0,
    "initial_scale_power": 26,
    "loss_scale_window": 3,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
STEPS = 20
# Every parameter, also a small one.
SHARED_OUT = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}


def config_of(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    place = str(folder / name)
    common = {
        "precision": "fp16",
        "fp16": SCALING,
        "save": place,
        "load": place,
        "hidden_dropout": 0.1,
        "train_micro_batch_size_per_gpu": 4,
    }
    return tiny_config(folder, **common | changes)


# One step, and an overflow on one rank.


def whole_weights(module: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of the parameters, also of those that ranks share out (ZeRO stage 3)."""
    with gathered(list(module.parameters())):
        return [p.detach().clone() for p in module.parameters()]


def overflow_on_each_rank(
    world: World, configs: list[dict[str, Any]]
) -> list[tuple[bool, bool, float, bool, float]]:
    """For each layout and each rank, whose gradients overflow once: was the step skipped, were the
    weights kept, which loss scale followed; was the next step skipped, and what was its norm."""
    found = []
    for config in configs:
        args = NeoXArgs.from_dict(config, world_size=world.size)
        parts = build_parts(args, world)
        engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
        settings = StepSettings(
            parts.device, parts.groups, seed=1, has_dropout=False, zero_stage=args.optim.zero_stage
        )
        generator = torch.Generator().manual_seed(parts.groups.get_data_parallel_rank())
        tokens = torch.randint(0, 256, (2, 2, 17), generator=generator)
        mask = torch.ones(2, 2, 16, dtype=torch.bool)
        batch = StepBatch(tokens, mask, first_sample=0, num_samples=8)
        for culprit in range(world.size):
            before = whole_weights(engine.module)
            assert all(weight.numel() for weight in before)
            weight = engine.module.sequential[2].mlp.linear1.weight
            factor = float("inf") if world.rank == culprit else 1.0
            hook = weight.register_hook(lambda gradient, factor=factor: gradient * factor)
            bad = train_step(engine, batch, settings, step=0, learning_rate=0.01)
            hook.remove()
            after = whole_weights(engine.module)
            kept = all(torch.equal(b, a) for b, a in zip(before, after, strict=True))
            assert math.isfinite(bad.loss)
            assert bad.loss_scale is not None
            good = train_step(engine, batch, settings, step=1, learning_rate=0.01)
            found.append((bad.skipped, kept, bad.loss_scale, good.skipped, good.grad_norm))
    return found


def one_step_config(folder: Path, ranks: int, stage: int, sequence: bool) -> dict[str, Any]:
    scaling = {"enabled": True, "initial_scale_power": 10, "hysteresis": 1}
    changes: dict[str, Any] = {
        "model_parallel_size": 2,
        "sequence_parallel": sequence,
        "fp16": scaling,
        "zero_optimization": {"stage": stage},
        "train_batch_size": None,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
    } | (SHARED_OUT if stage == 3 else {})
    return config_of(folder, f"{ranks}-{stage}", **changes)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_overflow_on_one_rank_is_skipped_by_all(tmp_path: Path, ranks: int) -> None:
    """On two tensor-parallel ranks, and on two copies of them."""
    configs = [one_step_config(tmp_path, ranks, stage, stage == 2) for stage in (1, 2, 3)]
    found = run_ranks(ranks, overflow_on_each_rank, configs)
    assert found == [found[0]] * ranks  # the same on all ranks
    assert len(found[0]) == 3 * ranks
    for number, (skipped, kept, scale, next_skipped, norm) in enumerate(found[0]):
        assert skipped
        assert kept
        assert scale == 2.0 ** (9 - number % ranks)
        assert not next_skipped
        assert 0 < norm < math.inf


# Whole runs.


def run_all(world: World, configs: list[dict[str, Any]]) -> list[str]:
    """Train as each configuration says; what each ended with."""
    said = []
    for config in configs:
        try:
            state = run_training(NeoXArgs.from_dict(config, world_size=world.size), world)
            said.append(f"{state.step} steps, {state.skipped_steps} skipped")
        except TrainingError as error:
            said.append(str(error))
    return said


def require_equal_runs(one: Path, other: Path) -> None:
    for name in ("lm_loss", "grad_norm", "loss_scale", "skipped_iterations", "learning_rate"):
        expected = series(one, f"train/{name}")
        assert len(expected) == STEPS
        assert series(other, f"train/{name}") == expected, name
    assert series(other, "test/lm_loss") == series(one, "test/lm_loss")


@pytest.mark.ranks
def test_a_stopped_run_goes_on_exactly_with_its_loss_scale(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    whole, halves = config_of(tmp_path, "whole"), config_of(tmp_path, "halves")
    # Stops amid the first overflows, right after one, and amid steps without.
    stopped = [halves | {"exit_interval": step} for step in (2, 5, 11)]
    said = run_ranks(2, run_all, [whole, *stopped, halves])
    assert said[0] == said[1]
    assert said[0][0] == said[0][-1]
    folder = tmp_path / "whole"
    require_equal_runs(folder, tmp_path / "halves")

    skipped = series(folder, "train/skipped_iterations")
    assert sum(skipped[:8]) >= 3
    assert sum(skipped[8:]) >= 1
    assert sum(skipped) <= 12
    losses, norms = series(folder, "train/lm_loss"), series(folder, "train/grad_norm")
    # What a skipped step has no number for is null in the file.
    assert [norm is None for norm in norms] == [bool(skip) for skip in skipped]
    assert losses[-1] < losses[0]
    # A skipped step does not move the learning rate.
    schedule = build_schedule(NeoXArgs.from_dict(whole, world_size=2))
    updates = 0
    for rate, skip in zip(series(folder, "train/learning_rate"), skipped, strict=True):
        assert rate == schedule.at(updates)
        updates += 1 - int(skip)


@pytest.mark.ranks
@pytest.mark.slow
def test_so_does_one_whose_weights_are_shared_out(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    whole, halves = (config_of(tmp_path, name, **SHARED_OUT) for name in ("whole", "halves"))
    said = run_ranks(2, run_all, [whole, halves | {"exit_interval": 5}, halves])
    assert said[0] == said[1]
    assert said[0][0] == said[0][-1]
    require_equal_runs(tmp_path / "whole", tmp_path / "halves")
    assert sum(series(tmp_path / "whole", "train/skipped_iterations")) >= 4


def load_and_score(world: World, config: dict[str, Any]) -> tuple[str, bool]:
    args = NeoXArgs.from_dict(config, world_size=world.size)
    model, _ = load_trained_model(args, build_parts(args, world))
    logits = model(torch.arange(16).unsqueeze(0))
    return str(logits.dtype), bool(logits.isfinite().all())


@pytest.mark.ranks
def test_a_run_that_only_overflows_ends_with_the_reason(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny", documents=120)
    high = 2.0**30
    lowest = config_of(tmp_path, "lowest", fp16=SCALING | {"min_loss_scale": high / 16})
    lowest["fp16"]["initial_scale_power"] = 30
    fixed = config_of(
        tmp_path, "fixed", fp16={"enabled": True, "loss_scale": high}, train_iters=MOST_SKIPS + 5
    )
    moderate = config_of(tmp_path, "moderate", fp16={"enabled": True, "loss_scale": 128.0})
    (said,) = run_ranks(1, run_all, [lowest, fixed, moderate])
    assert said[0].startswith(
        "step 6: fp16 gradients overflow at the smallest loss scale, 6.71089e+07"
    )
    assert said[1].startswith(f"step {MOST_SKIPS}: the last {MOST_SKIPS} steps overflowed in fp16")
    assert all("to do: use precision: bfloat16" in text for text in said[:2])
    assert said[2] == f"{STEPS} steps, 0 skipped"
    assert set(series(tmp_path / "moderate", "train/loss_scale")) == {128.0}
    (scored,) = run_ranks(1, load_and_score, moderate)
    assert scored == ("torch.float16", True)


def test_when_a_run_gives_up() -> None:
    give_up_after(MOST_SKIPS - 1, step=100, loss_scale=0.5)
    with pytest.raises(TrainingError, match="step 100: the last 50 steps"):
        give_up_after(MOST_SKIPS, step=100, loss_scale=0.5)
