"""Protects what evaluation and generation are told about the checkpoint that they read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from megatron.errors import ConfigError
from megatron.logging import get_logger
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.run import run_training
from megatron.training.setup import build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import tiny_config, write_tokens

ASSETS = Path(__file__).parents[1] / "assets" / "gpt2"
OTHER = {
    "tokenizer_type": "GPT2BPETokenizer",
    "vocab_file": str(ASSETS / "vocab.json"),
    "merge_file": str(ASSETS / "merges.txt"),
}


def warnings_of_loading(world: World, config: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Trains a little, then loads it with the same tokenizer, then claims to have used ``other``."""
    heard: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    args = NeoXArgs.from_dict(config, world_size=1)
    run_training(args, world)
    get_logger("megatron").addHandler(listener)
    load_trained_model(args, build_parts(args, world))
    assert heard == []
    # A step that a file names is what it expects, not what it gets.
    for refuse in (
        lambda args: load_trained_model(args, build_parts(args, world)),
        lambda args: run_training(args, world),
    ):
        with pytest.raises(
            ConfigError, match="iteration: the configuration says 5, this run has 1"
        ):
            refuse(NeoXArgs.from_dict(config | {"iteration": 5}, world_size=1))
    changed = NeoXArgs.from_dict(config | other, world_size=1)
    with pytest.raises(Exception, match="are not this model's"):
        load_trained_model(changed, build_parts(changed, world))
    return heard


@pytest.mark.ranks
def test_another_tokenizer_is_said(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    config = tiny_config(tmp_path, train_iters=1, train_batch_size=2, eval_iters=0)
    (heard,) = run_ranks(1, warnings_of_loading, config, OTHER)
    assert len(heard) == 1
    assert "was trained with another tokenizer than GPT2BPETokenizer" in heard[0]
