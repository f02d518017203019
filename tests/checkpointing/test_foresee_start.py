"""Protects that a check foresees the layout that a run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.checkpointing import find_checkpoint
from megatron.checkpointing.foresee_start import facts_of_run
from megatron.neox_arguments import NeoXArgs
from tests.parallel.layouts import Layout, Variant, config_of
from tests.support.ranks import run_ranks
from tests.support.tiny import write_tokens
from tests.support.whole_runs import train_all

PLACES = [
    Layout(data=4, zero=2),
    Layout(2, data=2, zero=1),
    Layout(2, context=2, zero=3),
    Layout(pipe=2, data=2, zero=1),
    Layout(2, pipe=2),
]


@pytest.mark.ranks
def test_what_is_foreseen_is_what_is_written(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    configs: list[dict[str, Any]] = [
        config_of(place, Variant(2), "Adam")
        | {
            "data_path": str(tmp_path / "data" / "tiny"),
            "train_iters": 1,
            "eval_iters": 0,
            "precision": "bfloat16" if place.pipe else "fp32",
            "save": str(tmp_path / str(place)),
        }
        for place in PLACES
    ]
    run_ranks(4, train_all, configs)
    for config in configs:
        found = find_checkpoint(config["save"])
        assert found is not None
        assert found.manifest is not None
        assert facts_of_run(NeoXArgs.from_dict(config), 4) == found.manifest.engine
