"""Protects that a layout which would be wrong, or cannot be, is refused before anything starts.

Each refusal names the key and says what to do instead. ``make test-all`` prints them beside the table of
those that work (``test_layouts_agree.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from tests.support.tiny import tiny_config

Case = tuple[str, int, dict[str, Any], str]

# What it is, ranks, keys of the configuration, and a piece of the message.
REFUSED: list[Case] = [
    (
        "PP2, ZeRO 2",
        2,
        {"pipe_parallel_size": 2, "zero_optimization": {"stage": 2}},
        "zero_optimization.stage: stage 2 cannot run in DeepSpeed's pipeline engine",
    ),
    (
        "PP2, ZeRO 3",
        2,
        {"pipe_parallel_size": 2, "zero_optimization": {"stage": 3}},
        "zero_optimization.stage: stage 3 cannot run in DeepSpeed's pipeline engine",
    ),
    (
        "PP2 x CP2",
        4,
        {"pipe_parallel_size": 2, "context_parallel_size": 2},
        "context_parallel_size: 2 ranks cannot share sequences in a pipeline",
    ),
    (
        "PP8 of 2 layers",
        8,
        {"pipe_parallel_size": 8},
        "pipe_parallel_size: 8 stages for 5 layers with weights",
    ),
    (
        "TP3 of 4 heads",
        3,
        {"model_parallel_size": 3},
        "model_parallel_size: 3 ranks cannot share the attention heads evenly",
    ),
    (
        "TP2 of 3 ranks",
        3,
        {"model_parallel_size": 2},
        "the layout needs a multiple of 2 GPUs (or CPU processes), 3 is none",
    ),
    (
        "TP2+SP, 15 tokens",
        2,
        {"model_parallel_size": 2, "sequence_parallel": True, "seq_length": 15},
        "sequence_parallel: 2 ranks (model_parallel_size) cannot share seq_length 15 evenly",
    ),
    (
        "CP8 of 4 heads",
        8,
        {"context_parallel_size": 8},
        "context_parallel_size: 8 ranks cannot share 4 attention heads evenly",
    ),
    (
        "ZeRO 0, optimizer offloaded",
        1,
        {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
        "zero_optimization.offload_optimizer: works with ZeRO stages 1, 2 and 3, the stage is 0",
    ),
    (
        "ZeRO 1, weights offloaded",
        1,
        {"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}},
        "zero_optimization.offload_param: works with ZeRO stage 3, the stage is 1",
    ),
    (
        "ZeRO 3, weights on NVMe",
        1,
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        "zero_optimization.offload_param.device: nvme needs DeepSpeed's asynchronous file access",
    ),
]
# What is run in another way than asked for, and said.
CHANGED: list[Case] = [
    (
        f"{precision}, ZeRO 0",
        1,
        {"precision": precision, "zero_optimization": {"stage": 0}},
        "zero_optimization.stage: 0 runs as 1",
    )
    for precision in ("bfloat16", "fp16")
]


def read(ranks: int, changes: dict[str, Any]) -> NeoXArgs:
    return NeoXArgs.from_dict(tiny_config(Path("nowhere"), **changes), world_size=ranks)


def refusal(ranks: int, changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        read(ranks, changes)
    return str(error.value)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_refused(case: Case) -> None:
    _, ranks, changes, says = case
    assert says in refusal(ranks, changes)


@pytest.mark.parametrize("case", CHANGED, ids=lambda case: case[0])
def test_run_in_another_way_and_said(case: Case) -> None:
    _, ranks, changes, says = case
    args = read(ranks, changes)
    assert args.optim.zero_stage == 1
    assert any(says in note for note in args.notes)


@pytest.mark.slow
def test_the_table_of_refusals(say: Callable[[str], None]) -> None:
    rows = [f"{what:30}{refusal(ranks, changes)}" for what, ranks, changes, _ in REFUSED]
    rows += [
        f"{what:30}{next(note for note in read(ranks, changes).notes if says in note)}"
        for what, ranks, changes, says in CHANGED
    ]
    say("refused, or changed and said\n" + "\n".join(rows))
    assert len(rows) == len(REFUSED) + len(CHANGED)
