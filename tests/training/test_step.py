"""Protects the step: one loss for the whole global batch, and no update from what is no number."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.data.step_batch import StepBatch
from megatron.errors import TrainingError
from megatron.mpu import ParallelGroups
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.partitioned import gathered
from megatron.runtime.world import World
from megatron.training.evaluate import total_loss
from megatron.training.run import run_training
from megatron.training.setup import build_model, build_parts
from megatron.training.step import _agree, train_step
from tests.support.engines_for_steps import build
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens

SEQ, MICRO, ACCUMULATION = 16, 2, 2


def uneven_batch(rank: int) -> StepBatch:
    """Rank 0 has many valid tokens, rank 1 few, and one micro-batch none at all."""
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, 256, (ACCUMULATION, MICRO, SEQ + 1), generator=generator)
    mask = torch.rand(ACCUMULATION, MICRO, SEQ, generator=generator) < (0.9 if rank == 0 else 0.2)
    if rank == 1:
        mask[1] = False
    return StepBatch(tokens, mask, first_sample=0, num_samples=8)


def one_step_sgd(world: World, config: dict[str, Any], learning_rate: float) -> Any:
    engine, settings = build(world, config)
    before = {n: p.detach().numpy().copy() for n, p in engine.module.named_parameters()}
    batch = uneven_batch(world.rank)
    evaluated = total_loss(engine.module, [batch], settings.groups, settings.device)
    result = train_step(engine, batch, settings, step=0, learning_rate=learning_rate)
    after = {n: p.detach().numpy() for n, p in engine.module.named_parameters()}
    moved = {n: (before[n] - after[n]) / learning_rate for n in before}
    return result, evaluated, before, moved


def sgd_config(folder: Path, stage: int, clipping: float = 0.0) -> dict[str, Any]:
    return tiny_config(
        folder,
        optimizer={"type": "SGD", "params": {"lr": 0.5}},
        zero_optimization={"stage": stage},
        weight_decay=0.0,
        gradient_clipping=clipping,
        train_batch_size=None,
        gradient_accumulation_steps=ACCUMULATION,
    )


STAGES, CLIPPINGS = (0, 1, 2), (0.0, 0.1, 2.0)


def all_steps_sgd(world: World, folder: Path) -> dict[tuple[int, float], Any]:
    return {
        case: one_step_sgd(world, sgd_config(folder, *case), 0.5)
        for case in itertools.product(STAGES, CLIPPINGS)
    }


@pytest.fixture(scope="module")
def steps_sgd(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[int, float], Any]]:
    """By rank and case; one world goes through all of them."""
    found: list[dict[tuple[int, float], Any]] = run_ranks(
        2, all_steps_sgd, tmp_path_factory.mktemp("sgd")
    )
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("clipping", CLIPPINGS, ids="clipping {}".format)
def test_the_gradient_is_that_of_the_mean_over_all_valid_tokens(
    tmp_path: Path, stage: int, clipping: float, steps_sgd: list[dict[tuple[int, float], Any]]
) -> None:
    config = sgd_config(tmp_path, stage, clipping)
    (result, evaluated, weights, moved), (other, *_) = (rank[stage, clipping] for rank in steps_sgd)
    assert result == other

    # The same in one process and one batch, by torch alone.
    args = NeoXArgs.from_dict(config, world_size=1)
    model = build_model(args, build_parts(args, World()))
    model.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
    batches = [uneven_batch(0), uneven_batch(1)]
    tokens = torch.cat([b.tokens.flatten(0, 1) for b in batches])
    mask = torch.cat([b.loss_mask.flatten(0, 1) for b in batches])
    logits = model(tokens[:, :-1])
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    loss = (losses * mask.flatten()).sum() / mask.sum()
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    norm = torch.stack([g.norm() for g in grads.values()]).norm().item()
    assert 1.8 < norm < 2.0  # one clipping is far below the norm, one a little above it
    clipped = min(1.0, clipping / norm) if clipping else 1.0

    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    assert evaluated.tokens == int(mask.sum())
    assert evaluated.mean == pytest.approx(loss.item(), rel=1e-6)
    for name, grad in grads.items():
        torch.testing.assert_close(
            torch.from_numpy(moved[name]), clipped * grad, rtol=1e-3, atol=2e-6, msg=name
        )


def masked_step(world: World, config: dict[str, Any]) -> Any:
    engine, settings = build(world, config)
    batch = uneven_batch(world.rank)
    nothing = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    evaluated = total_loss(engine.module, [nothing], settings.groups, settings.device)
    return train_step(engine, nothing, settings, step=0, learning_rate=0.1), evaluated.mean


@pytest.mark.ranks
def test_a_step_of_which_nothing_counts_learns_nothing(tmp_path: Path) -> None:
    (result, evaluated), _ = run_ranks(2, masked_step, sgd_config(tmp_path, 1))
    assert (result.loss, result.grad_norm) == (0.0, 0.0)
    assert math.isnan(evaluated)  # a loss of 0 would be a perfect score


def stopped_meanwhile(world: World, config: dict[str, Any]) -> bool:
    engine, settings = build(world, config)
    asked: list[object] = []
    if world.rank == 1:
        engine.module.register_forward_hook(lambda *_: asked.append("by a signal"))
    result = train_step(
        engine,
        uneven_batch(world.rank),
        settings,
        step=0,
        learning_rate=0.1,
        stop_asked=lambda: bool(asked),
    )
    return result.stop


@pytest.mark.ranks
def test_a_stop_in_the_middle_of_a_step_ends_the_run_after_it(tmp_path: Path) -> None:
    assert run_ranks(2, stopped_meanwhile, sgd_config(tmp_path, 1)) == [True, True]


def heard(world: World, model_parallel_size: int) -> list[tuple[float, bool]]:
    """What each step's agreement says when nobody, and when one rank alone, was asked to stop."""
    groups = ParallelGroups(world, model_parallel_size=model_parallel_size)
    loss, valid = torch.tensor(6.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)
    return [_agree(loss, valid, world.rank == asked, groups) for asked in (None, 1)]


@pytest.mark.ranks
@pytest.mark.parametrize("model_parallel_size", [1, 2])
def test_all_ranks_hear_of_a_stop_at_the_same_step(model_parallel_size: int) -> None:
    loss = 6.0 * (2 // model_parallel_size) / 3.0
    for rank in run_ranks(2, heard, model_parallel_size):
        assert rank == [(loss, False), (loss, True)]


def broken_steps(world: World, config: dict[str, Any]) -> list[tuple[str, bool]]:
    """For a bad loss and a bad gradient: the error, and whether the weights stayed as they were."""
    found = []
    for broken in ("loss", "gradient"):
        engine, settings = build(world, config)
        model = engine.module
        # One rank alone computes what is no number.
        if broken == "loss" and world.rank == 1:
            model.register_forward_hook(lambda _model, _inputs, logits: logits * float("inf"))
        if broken == "gradient" and world.rank == 1:
            model.sequential[-1].final_linear.weight.register_hook(lambda g: g * float("nan"))
        before = whole_weights(model)
        try:
            train_step(engine, uneven_batch(0), settings, step=6, learning_rate=0.1)
            said = "nothing"
        except TrainingError as error:
            said = str(error).splitlines()[0]
        after = whole_weights(model)
        found.append((said, all(torch.equal(before[name], after[name]) for name in before)))
    return found


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    with gathered(model.parameters()):
        return {name: p.detach().clone() for name, p in model.named_parameters()}


def all_broken_steps(world: World, configs: dict[str, Any]) -> dict[str, list[tuple[str, bool]]]:
    return {name: broken_steps(world, config) for name, config in configs.items()}


@pytest.mark.ranks
def test_what_is_no_number_stops_all_ranks_before_the_update(tmp_path: Path) -> None:
    host = {"device": "cpu"}
    zeros: list[dict[str, Any]] = [
        *({"stage": stage} for stage in (0, 1, 2, 3)),
        *({"stage": stage, "offload_optimizer": host} for stage in (1, 2, 3)),
        {"stage": 3, "offload_optimizer": host, "offload_param": host},
    ]
    configs = {str(zero): sgd_config(tmp_path, 0) | {"zero_optimization": zero} for zero in zeros}
    for rank in run_ranks(2, all_broken_steps, configs):
        assert rank.keys() == configs.keys()
        for zero, ((loss, same_loss), (gradient, same_gradient)) in rank.items():
            assert loss.startswith("step 7: the loss is "), (zero, loss)
            assert gradient.startswith("step 7: the gradient norm is "), (zero, gradient)
            assert same_loss, zero
            assert same_gradient, zero


def runs(world: World, *configs: dict[str, Any]) -> list[int]:
    """The steps of runs one after the other."""
    return [
        run_training(NeoXArgs.from_dict(config, world_size=world.size), world).step
        for config in configs
    ]


@pytest.mark.ranks
@pytest.mark.parametrize(("precision", "stage"), [("fp32", 1), ("bfloat16", 2)])
def test_finetune_keeps_the_loaded_weights(tmp_path: Path, precision: str, stage: int) -> None:
    """Three steps at a learning rate of 0: the loss is that of the loaded weights, step after step."""
    write_tokens(tmp_path / "data" / "tiny")
    zero = {"stage": stage}
    base = tiny_config(tmp_path, precision=precision, zero_optimization=zero, train_iters=5)
    tuned = tmp_path / "tuned"
    still = base | {
        "finetune": True,
        "save": str(tuned),
        "train_iters": 3,
        "eval_interval": 1,
        "eval_same_samples": True,
        "optimizer": {"type": "Adam", "params": {"lr": 0.0}},
        "min_lr": 0.0,
        "weight_decay": 0.0,
        "use_checkpoint_lr_scheduler": True,  # of a run that is continued, which this one is not
    }
    assert run_ranks(2, runs, base, still) == [[5, 3], [5, 3]]
    (trained,) = series(tmp_path / "checkpoints", "test/lm_loss")
    assert series(tuned, "test/lm_loss") == [trained]
    assert len(set(series(tuned, "validation/lm_loss"))) == 1
    assert series(tuned, "consumed_samples")[0] == 8
