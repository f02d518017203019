"""Protects what is told of a pipeline: its stages, how long they wait, and the memory of the largest."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.monitor.pipeline_facts import bubble, memory_of_largest_stage, pipeline_text
from megatron.neox_arguments import NeoXArgs
from tests.support.small_config import small

ROWS = 512


def args_of(**changes: Any) -> NeoXArgs:
    shape = {"num_layers": 5, "attention_config": ..., "gradient_accumulation_steps": 6}
    return NeoXArgs.from_dict(small(**{**shape, **changes}))


@pytest.mark.parametrize(
    ("stages", "micro_batches", "share"), [(1, 4, 0.0), (2, 1, 0.5), (4, 32, 3 / 35), (4, 9, 0.25)]
)
def test_a_stage_waits_for_the_first_micro_batch_and_behind_the_last(
    stages: int, micro_batches: int, share: float
) -> None:
    assert bubble(stages, micro_batches) == pytest.approx(share)


def test_one_line_about_a_pipeline() -> None:
    uneven = args_of(pipe_parallel_size=2)
    assert pipeline_text(uneven, uneven.batch_sizes(2), ROWS) == (
        "2 stages of 3 + 2 transformer layers; with 6 micro-batches a step each waits 14% of the time"
    )
    even = args_of(pipe_parallel_size=3, num_layers=6)
    assert pipeline_text(even, None, ROWS) == "3 stages of 2 transformer layers"
    assert pipeline_text(args_of(), None, ROWS) is None
    assert pipeline_text(args_of(pipe_parallel_size=1), None, ROWS) is None


def test_memory_is_that_of_the_largest_stage() -> None:
    """Weights in fp32 under ZeRO 0: those of a table and three of five layers in the first stage; or, where
    the table is large and tied, of its copy in the last."""
    args = args_of(pipe_parallel_size=2)
    counts = args.model.layer_parameter_counts(ROWS)
    first = memory_of_largest_stage(args, args.batch_sizes(2), ROWS)
    assert first.weights == 4 * sum(counts[:5])
    tied = args_of(pipe_parallel_size=2, no_weight_tying=False)
    rows = 1_000_000
    last = memory_of_largest_stage(tied, tied.batch_sizes(2), rows)
    counts = tied.model.layer_parameter_counts(rows)
    assert last.weights == 4 * (sum(counts[5:]) + counts[0])


def test_the_first_stage_keeps_a_micro_batch_for_each_stage() -> None:
    few = args_of(pipe_parallel_size=2, gradient_accumulation_steps=1)
    many = args_of(pipe_parallel_size=2, gradient_accumulation_steps=9)
    one, two = (memory_of_largest_stage(a, a.batch_sizes(2), 128) for a in (few, many))
    # Of two sequences of 8 tokens in fp32, a layer keeps: 3 h + 3 h, 2 h rotated, 2 h attended, 2 x 4 h.
    assert two.activations - one.activations == 2 * 8 * 4 * 3 * 32 * (3 + 3 + 2 + 2 + 8)
