"""Protects the rules about options of the model: which combinations stop a start, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.sections import ModelArgs
from tests.support.small_config import refusal, small


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"pos_emb": "rpe", "pipe_parallel_size": 2},
            "pos_emb: rpe has one table for all layers, and the 2 stages of a pipeline "
            "(pipe_parallel_size) hold different layers: use pipe_parallel_size: 0 or 1",
        ),
        ({"pos_emb": "rpe", "rpe_num_buckets": 1}, "rpe_num_buckets: 1 tells no distances apart"),
        (
            {"pos_emb": "rpe", "rpe_max_distance": 16},
            "rpe_max_distance: 16 is within the first 16 distances (half of rpe_num_buckets)",
        ),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"rpe_max_distance": 64}, "ignored: rpe_max_distance (pos_emb is rotary)"),
        (
            {"rpe_num_buckets": 8, "rpe_max_distance": 64, "pos_emb": "none"},
            "ignored: rpe_num_buckets, rpe_max_distance (pos_emb is none)",
        ),
    ],
)
def test_what_has_no_effect_is_said(changes: dict[str, Any], note: str) -> None:
    assert note in NeoXArgs.from_dict(small(**changes)).notes


def test_a_pipeline_of_one_stage_has_all_layers() -> None:
    args = NeoXArgs.from_dict(small(pos_emb="rpe", pipe_parallel_size=1))
    assert args.model.pos_emb == "rpe"


def test_the_table_of_distances_is_counted_once() -> None:
    shape: dict[str, Any] = {"num_layers": 3, "hidden_size": 8, "num_attention_heads": 2}
    plain, relative = (
        ModelArgs(**shape, pos_emb=kind).layer_parameter_counts(16) for kind in ("none", "rpe")
    )
    assert [b - a for a, b in zip(plain, relative, strict=True)] == [0, 0, 64, 0, 0, 0, 0, 0]
