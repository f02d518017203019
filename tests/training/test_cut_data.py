"""A token file that is cut while a run reads it is found at the next checkpoint, which is saved first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training import run
from tests.support.ranks import run_outcomes
from tests.support.tiny import tiny_config, write_tokens


def train(world: World, config: dict[str, Any], data: Path) -> None:
    save = run.save_checkpoint

    def save_and_cut(*args: Any, **options: Any) -> Path:
        os.truncate(data, 100)
        return save(*args, **options)

    run.save_checkpoint = save_and_cut
    run.run_training(NeoXArgs.from_dict(config, world_size=world.size), world)


@pytest.mark.ranks
def test_a_cut_file_is_found_at_the_next_checkpoint(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    config = tiny_config(tmp_path, checkpoint_factor=2, eval_iters=0)
    (outcome,) = run_outcomes(1, train, config, tmp_path / "data" / "tiny.bin")
    assert outcome.exit_code == 1  # and no SIGBUS
    assert "tiny.bin: has 100 bytes now, " in (outcome.error or "")
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step2"
