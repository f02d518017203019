"""Protects sums of half-precision gradients: over micro-batches and over ranks, in fp32 when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron.data.step_batch import StepBatch
from megatron.losses import loss_sum
from megatron.mpu import ParallelGroups
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.runtime.world import World
from megatron.training.setup import DTYPES, build_engine, build_model, build_parts
from megatron.training.step import StepSettings, train_step
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

RANKS = 4
MICRO_BATCHES = 8
LOSS_SCALE = 1024.0
SHARED_OUT = {"stage": 3, "stage3_param_persistence_threshold": 0}
TRAVEL = {"communication_data_type": "fp32"}
ADD_UP = {"data_types": {"grad_accum_dtype": "fp32"}}
WAYS: dict[str, dict[str, Any]] = {
    "by default": {},
    "on the way": {"fp32_allreduce": True},
    "always": TRAVEL | ADD_UP,
}


def config_of(
    folder: Path, precision: str, stage: int, micro_batches: int = MICRO_BATCHES, **changes: Any
) -> dict[str, Any]:
    """A run whose first step moves the weights by their gradient."""
    settings = {
        "num_layers": 1,
        "precision": precision,
        "zero_optimization": SHARED_OUT if stage == 3 else {"stage": stage},
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "weight_decay": 0.0,
        "gradient_clipping": 0.0,
        "train_batch_size": None,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
    }
    if precision == "fp16":
        settings["fp16"] = {"enabled": True, "loss_scale": LOSS_SCALE}
    return tiny_config(folder, **(settings | changes))


def batch_of(rank: int, micro_batches: int) -> StepBatch:
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, 256, (micro_batches, 1, 17), generator=generator)
    return StepBatch(tokens, torch.ones(micro_batches, 1, 16).bool(), 0, micro_batches * RANKS)


def true_gradients(
    model: torch.nn.Module, batch: StepBatch, groups: ParallelGroups, factor: float
) -> dict[str, torch.Tensor]:
    """Of the mean loss: gradients of micro-batches as the model computes them, added up in fp64.

    Args:
        factor: of the loss, as the engine has it; where gradients are smaller than half precision can
            say, it matters.
    """
    named = dict(model.named_parameters())
    sums = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in named.items()}
    for micro, tokens in enumerate(batch.tokens):
        loss = loss_sum(model(tokens[:, :-1]), batch.targets[micro], batch.loss_mask[micro], groups)
        gradients = torch.autograd.grad(loss * factor, list(named.values()))
        for name, gradient in zip(named, gradients, strict=True):
            sums[name] += gradient.double() / factor
    for gradient in sums.values():
        dist.all_reduce(gradient)
    tokens_in_all = batch.loss_mask.numel() * RANKS
    return {name: gradient / tokens_in_all for name, gradient in sums.items()}


def errors(world: World, configs: dict[str, dict[str, Any]]) -> dict[str, float]:
    """For each configuration: how far the gradient of a step is from the true one, in parts of it."""
    return {name: error_of(world, config) for name, config in configs.items()}


def error_of(world: World, config: dict[str, Any]) -> float:
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    micro_batches = config["gradient_accumulation_steps"]
    batch = batch_of(world.rank, micro_batches)
    twin = build_model(args, parts).to(DTYPES[args.model.precision])
    scaling = LOSS_SCALE if args.model.precision == "fp16" else 1.0
    true = true_gradients(twin, batch, parts.groups, scaling / batch.loss_mask.numel())
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    settings = StepSettings(
        parts.device, parts.groups, seed=1, has_dropout=False, zero_stage=args.optim.zero_stage
    )

    def masters() -> dict[str, torch.Tensor]:
        whole = deepspeed.utils.safe_get_full_fp32_param
        return {name: whole(p).double() for name, p in engine.module.named_parameters()}

    before = masters()
    told = train_step(engine, batch, settings, step=0, learning_rate=1.0)
    after = masters()
    off = sum(float((before[name] - after[name] - true[name]).square().sum()) for name in true)
    norm = float(sum(float(g.square().sum()) for g in true.values()) ** 0.5)
    # By this norm gradients are clipped.
    assert told.grad_norm == pytest.approx(norm, rel=1e-2)
    return float(off**0.5) / norm


def check(folder: Path, cases: dict[str, tuple[str, int, dict[str, Any]]]) -> None:
    """Sums in fp32 are right to fp32's rounding; by default, and with fp32 on the way only, they are not.

    Args:
        cases: precision, ZeRO stage and more of a configuration, by name.
    """
    configs: dict[str, dict[str, Any]] = {}
    for name, (precision, stage, more) in cases.items():
        for way, how in WAYS.items():
            configs[f"{name} {way}"] = config_of(folder, precision, stage, **more, **how)
    found = run_ranks(RANKS, errors, configs)
    assert found == [found[0]] * RANKS
    for name, (precision, _, _) in cases.items():
        plain, travelled, exact = (found[0][f"{name} {way}"] for way in WAYS)
        assert exact < 2e-6, name
        # 2^-9 and 2^-12 is what one rounding to bf16 and to fp16 costs at most.
        assert plain > {"bfloat16": 2**-9, "fp16": 2**-12}[precision], name
        assert 100 * exact < travelled < plain, name


@pytest.mark.ranks
def test_sums_in_fp32_are_those_of_fp32(tmp_path: Path) -> None:
    check(tmp_path, {"stage 1": ("bfloat16", 1, {})})


@pytest.mark.ranks
@pytest.mark.slow
def test_sums_in_fp32_in_every_stage_and_place(tmp_path: Path) -> None:
    cases: dict[str, tuple[str, int, dict[str, Any]]] = {
        f"stage {stage}": ("bfloat16", stage, {}) for stage in (2, 3)
    }
    for stage in (1, 2, 3):
        offloaded = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
        cases[f"fp16 {stage}"] = ("fp16", stage, {})
        cases[f"offloaded {stage}"] = ("bfloat16", stage, {"zero_optimization": offloaded})
    check(tmp_path, cases)


@pytest.mark.ranks
@pytest.mark.slow
def test_a_run_with_sums_in_fp32_resumes_exactly(tmp_path: Path) -> None:
    """In stage 1 another of DeepSpeed's optimizers runs, with files of its own."""
    write_tokens(tmp_path / "data" / "tiny")
    layouts: list[dict[str, Any]] = [{}, {"model_parallel_size": 2}, {"pipe_parallel_size": 2}]

    def run_of(layout: dict[str, Any], kind: str, **changes: Any) -> dict[str, Any]:
        place = str(tmp_path / kind / ("-".join(layout) or "data"))
        settings = {"train_iters": 4, "eval_iters": 1, "hidden_dropout": 0.1, "save": place}
        settings |= {"load": place, "precision": "bfloat16", **ADD_UP, **TRAVEL, **layout}
        return tiny_config(tmp_path, **(settings | changes))

    whole = [run_of(layout, "whole") for layout in layouts]
    stopped = [run_of(layout, "halves", exit_interval=2) for layout in layouts]
    run_ranks(2, train_all, [*whole, *stopped])
    halves = [run_of(layout, "halves") for layout in layouts]
    assert run_ranks(2, train_all, halves) == [[4] * len(layouts)] * 2
    for one, two in zip(whole, halves, strict=True):
        for name in ("train/lm_loss", "train/grad_norm", "test/lm_loss"):
            expected = series(Path(one["save"]), name)
            assert series(Path(two["save"]), name) == expected
            assert len(expected) == (1 if name.startswith("test") else 4)
