"""Protects what ZeRO sends: as many numbers as the closed form says, within 5 % for padding and norms.

For P parameters, d data-parallel ranks and a micro-batches a step, in units of P (d - 1) / d numbers that
a rank sends: a reduce-scatter, an all-gather and a reduction to one rank cost 1, an all-reduce 2.

- Stage 1 reduces gradients once a step and gathers the weights: 2, or 3 by DeepSpeed's default
  (`use_multi_rank_bucket_allreduce`), which sums small buckets of all ranks in one all-reduce.
- Stage 2 reduces gradients in each micro-batch: a + 1, or 2 a + 1.
- Stage 3, where no weight is kept from one use to the next, gathers weights in each forward and each
  backward pass and scatters gradients: 3 a.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from megatron.data.step_batch import StepBatch
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.partitioned import whole_numel
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.runtime.world import World
from megatron.training.setup import build_engine, build_model, build_parts
from megatron.training.step import StepSettings, train_step
from tests.support.ranks import run_ranks
from tests.support.tiny import tiny_config

RANKS, MICRO_BATCHES = 2, 2
# What a collective costs, by its name in DeepSpeed, and which argument is as large as the whole.
COSTS = {
    "all_reduce": (2, "tensor", 0),
    "reduce": (1, "tensor", 0),
    "all_gather_into_tensor": (1, "output_tensor", 0),
    "reduce_scatter_tensor": (1, "input_tensor", 1),
    **dict.fromkeys(
        ("all_gather", "all_gather_coalesced", "reduce_scatter", "broadcast"), (None, "", 0)
    ),
}
OWNERS = {"use_multi_rank_bucket_allreduce": False}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "stage 1": ({"stage": 1}, 3),
    "stage 1, to owners": ({"stage": 1, **OWNERS}, 2),
    "stage 2": ({"stage": 2}, 2 * MICRO_BATCHES + 1),
    "stage 2, to owners": ({"stage": 2, **OWNERS}, MICRO_BATCHES + 1),
    "stage 3": (
        {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
        3 * MICRO_BATCHES,
    ),
}


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Numbers that DeepSpeed's collectives send meanwhile, times d / (d - 1), by the collective."""
    backend = deepspeed.comm.comm.cdb
    sent = dict.fromkeys(COSTS, 0)

    def counted(name: str) -> Any:
        function, (cost, argument, place) = getattr(backend, name), COSTS[name]

        def call(*args: Any, **options: Any) -> Any:
            assert cost is not None, f"{name} has no place in the closed form"
            whole = options.get(argument, args[place] if len(args) > place else None)
            assert isinstance(whole, Tensor)
            sent[name] += cost * whole.numel()
            return function(*args, **options)

        return call

    with mock.patch.multiple(backend, **{name: counted(name) for name in COSTS}):
        yield sent


def volumes(world: World, configs: dict[str, Any]) -> dict[str, tuple[int, dict[str, int]]]:
    """Of each case: parameters, and what the third step sends; before it, stage 3 traces the model."""
    tokens = torch.randint(0, 256, (MICRO_BATCHES, 2, 17))
    mask = torch.ones(MICRO_BATCHES, 2, 16, dtype=torch.bool)
    batch = StepBatch(tokens, mask, first_sample=0, num_samples=8)
    found = {}
    for name, config in configs.items():
        args = NeoXArgs.from_dict(config, world_size=world.size)
        parts = build_parts(args, world)
        engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
        parameters = sum(whole_numel(p) for p in engine.module.parameters())
        settings = StepSettings(
            parts.device,
            parts.groups,
            seed=1,
            has_dropout=False,
            zero_stage=args.optim.zero_stage,
        )
        for step in (0, 1):
            train_step(engine, batch, settings, step=step, learning_rate=0.01)
        with counting() as sent:
            train_step(engine, batch, settings, step=2, learning_rate=0.01)
        found[name] = parameters, sent
    return found


@pytest.mark.ranks
def test_zero_sends_as_many_numbers_as_the_closed_form_says(tmp_path: Path) -> None:
    configs = {
        name: tiny_config(tmp_path, zero_optimization=zero) for name, (zero, _) in CASES.items()
    }
    for rank in run_ranks(RANKS, volumes, configs):
        assert rank.keys() == CASES.keys()
        for name, (parameters, sent) in rank.items():
            expected = CASES[name][1] * parameters
            assert sum(sent.values()) == pytest.approx(expected, rel=0.05), (name, sent)
