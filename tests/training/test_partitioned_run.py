"""Protects whole runs under ZeRO stage 3: exact resume, and weights that every other layout reads."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from megatron.checkpointing import (
    CheckpointInfo,
    find_checkpoint,
    load_checkpoint,
    read_weights,
)
from megatron.checkpointing import (
    weights as weight_files,
)
from megatron.errors import CheckpointError, ConfigError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.partitioned import gathered
from megatron.runtime.world import World
from megatron.training.setup import Parts, build_engine, build_model, build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

EXACT = ("train/lm_loss", "train/grad_norm", "validation/lm_loss")
STEPS = 4
# As DeepSpeed would treat large models: everything is partitioned, and freed after each use.
PARTITIONED = {
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {
        "zero_optimization": PARTITIONED,
        "no_weight_tying": False,
        "checkpoint_activations": True,
        "train_micro_batch_size_per_gpu": 2,
    },
    # Small parameters stay whole here; both ranks of a copy hold the one key/value head.
    "tensor": {
        "zero_optimization": {"stage": 3},
        "model_parallel_size": 2,
        "sequence_parallel": True,
        "num_kv_heads": 1,
        "precision": "bfloat16",
        "train_micro_batch_size_per_gpu": 2,
    },
    "optimizer offloaded": {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "train_micro_batch_size_per_gpu": 1,
    },
    "fp16": {
        "zero_optimization": PARTITIONED,
        "precision": "fp16",
        "no_weight_tying": False,
        "train_micro_batch_size_per_gpu": 1,
    },
    "offloaded": {
        "zero_optimization": PARTITIONED
        | {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
        "precision": "bfloat16",
        "model_parallel_size": 2,
        "train_micro_batch_size_per_gpu": 2,
    },
}
# A run of no step: whatever is evaluated is what was loaded.
STILL: dict[str, Any] = {
    "finetune": True,
    "train_iters": 1,
    "min_lr": 0.0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
}


def config_of(folder: Path, variant: str, kind: str, **changes: Any) -> dict[str, Any]:
    place = str(folder / kind / variant)
    settings = {
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "train_iters": STEPS,
        "eval_interval": STEPS // 2,
        "eval_iters": 1,
        "save": place,
        "load": place,
    }
    return tiny_config(folder, **(settings | VARIANTS[variant] | changes))


def whole_weights(engine: Any) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in engine.module.named_parameters():
        with gathered([parameter]):
            found[name] = parameter.detach().clone()
    return found


def inspect(world: World, config: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint against its files: as a run resumes from it, and from its weights alone."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    found = find_checkpoint(config["load"], world=world)
    assert found is not None
    model_rank = parts.groups.get_model_parallel_rank()
    stored = read_weights(
        found, model_rank=model_rank, model_parallel_size=args.parallelism.model_parallel_size
    )
    seen: dict[str, Any] = {}
    for load_optim in (True, False):
        engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
        load_checkpoint(engine, found, world=world, load_optim=load_optim)
        weights = whole_weights(engine)
        seen["shapes", load_optim] = {tuple(p.shape) for p in engine.module.parameters()}
        seen["equal", load_optim] = weights.keys() == stored.keys() and all(
            torch.equal(weights[name], stored[name]) for name in weights
        )
        seen["step", load_optim] = engine.global_steps
    wider = NeoXArgs.from_dict(config | {"hidden_size": 64}, world_size=world.size)
    engine = build_engine(wider, parts, build_model(wider, parts, partitioned=True))
    try:
        load_checkpoint(engine, found, world=world)
    except CheckpointError as error:
        seen["refused"] = str(error)
    seen["unreadable"] = read_badly(world, args, parts, found)
    return seen


def read_badly(world: World, args: NeoXArgs, parts: Parts, found: CheckpointInfo) -> str:
    """What this rank is told when the last one cannot read the second layer's weights."""
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    layers = iter([1, 2])
    read = weight_files._read

    def fails_later(*arguments: Any) -> dict[str, torch.Tensor]:
        if world.rank == world.size - 1 and next(layers, 2) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "layer_01")
        return read(*arguments)

    try:
        with mock.patch.object(weight_files, "_read", fails_later):
            load_checkpoint(engine, found, world=world, load_optim=False)
    except CheckpointError as error:
        return str(error)
    return ""


def go_on(
    world: World, resumed: list[dict[str, Any]], tuned: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    train_all(world, [*resumed, *tuned])
    return [inspect(world, config) for config in resumed]


def check(folder: Path, variants: list[str], ranks: int) -> None:
    """Each variant in one go (``whole``), in two processes of half the steps (``halves``), and what its
    weights are worth in a run of stage 1 and in another of stage 3."""
    write_tokens(folder / "data" / "tiny")
    whole = [config_of(folder, variant, "whole") for variant in variants]
    stopped = [
        config_of(folder, variant, "halves", exit_interval=STEPS // 2) for variant in variants
    ]
    ends = [STEPS] * len(variants) + [STEPS // 2] * len(variants)
    assert run_ranks(ranks, train_all, whole + stopped) == [ends] * ranks
    halves = [config_of(folder, variant, "halves") for variant in variants]
    as_stage_1 = [
        config_of(folder, variant, "halves")
        | STILL
        | {"save": str(folder / "stage 1" / variant), "zero_optimization": {"stage": 1}}
        for variant in variants
    ]
    back_as_stage_3 = [
        config_of(folder, variant, "stage 1") | STILL | {"save": str(folder / "stage 3" / variant)}
        for variant in variants
    ]
    found = run_ranks(ranks, go_on, halves, [*as_stage_1, *back_as_stage_3])
    for number, variant in enumerate(variants):
        for name in EXACT:
            expected = series(folder / "whole" / variant, name)
            assert len(expected) == (2 if name.startswith("validation") else STEPS)
            assert series(folder / "halves" / variant, name) == expected, (variant, name)
        (trained,) = series(folder / "halves" / variant, "test/lm_loss")
        for other in ("stage 1", "stage 3"):
            assert series(folder / other / variant, "test/lm_loss") == [trained], (variant, other)
        for seen in (rank[number] for rank in found):
            for load_optim in (True, False):
                assert seen["equal", load_optim]
                assert seen["step", load_optim] == STEPS
                is_partitioned = VARIANTS[variant]["zero_optimization"]["stage"] == 3
                assert ((0,) in seen["shapes", load_optim]) is is_partitioned
            assert "the model has (64,)" in seen["refused"]
            expected = f"rank {ranks - 1} on .*: Input/output error: layer_01"
            assert bool(re.match(expected, seen["unreadable"])) is is_partitioned
    assert found[0][0]["shapes", True] == {(0,)}


def test_an_optimizer_that_must_be_compiled_first_is_refused(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}},
        optimizer={"type": "Adam", "params": {"lr": 0.01, "torch_adam": False}},
    )
    args = NeoXArgs.from_dict(config, world_size=1)
    parts = build_parts(args, World())
    with pytest.raises(ConfigError, match="take torch_adam out, for PyTorch's Adam"):
        build_engine(args, parts, build_model(args, parts))


@pytest.mark.ranks
def test_a_stopped_run_goes_on_exactly_and_all_layouts_read_its_weights(tmp_path: Path) -> None:
    check(tmp_path, ["tied"], ranks=2)


@pytest.mark.slow
@pytest.mark.ranks
def test_so_it_is_with_tensor_parallel_ranks_and_in_half_precision(tmp_path: Path) -> None:
    check(tmp_path, list(VARIANTS), ranks=4)
