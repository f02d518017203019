"""Protects whole runs on tensor-parallel ranks: dropout, checkpoints, exact resume, generation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.errors import CheckpointError
from megatron.generation import generate
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

EXACT = ("train/lm_loss", "train/grad_norm", "validation/lm_loss")
# Two copies of two tensor-parallel ranks; with one key/value head both ranks of a copy hold it.
VARIANTS: dict[str, dict[str, Any]] = {
    "sequence": {
        "sequence_parallel": True,
        "precision": "bfloat16",
        "no_weight_tying": False,
        "checkpoint_activations": True,
        "zero_optimization": {"stage": 2},
    },
    "one kv head": {
        "num_kv_heads": 1,
        "zero_optimization": {"stage": 0},
        # The first of each model-parallel rank on a node writes that rank's weights.
        "use_node_local_storage": True,
    },
}


def config_of(folder: Path, variant: str, kind: str, **changes: Any) -> dict[str, Any]:
    place = str(folder / kind / variant)
    changes = {"hidden_dropout": 0.1, "attention_dropout": 0.1} | VARIANTS[variant] | changes
    return tiny_config(
        folder,
        model_parallel_size=2,
        train_iters=6,
        train_micro_batch_size_per_gpu=4,
        eval_interval=3,
        eval_iters=1,
        save=place,
        load=place,
        **changes,
    )


def resume_and_use(
    world: World, configs: list[dict[str, Any]], tuned: dict[str, Any], other: dict[str, Any]
) -> tuple[list[Any], str]:
    """Finish the runs, tune; texts from each, with a cache and without; what another layout is told."""
    train_all(world, [*configs, tuned])
    texts = []
    for config in configs:
        args = NeoXArgs.from_dict(config, world_size=world.size)
        parts = build_parts(args, world)
        model, _ = load_trained_model(args, parts)
        settings = replace(args.textgen, maximum_tokens=6, temperature=0.0)
        texts.append(
            [
                [
                    sample.text
                    for sample in generate(
                        model,
                        parts.tokenizer,
                        ["abc", "a longer one"],  # of lengths that two ranks cannot share
                        replace(settings, recompute=recompute),
                        seed=1,
                        device=torch.device("cpu"),
                    )
                ]
                for recompute in (False, True)
            ]
        )
    said = ""
    try:
        train_all(world, [other])
    except CheckpointError as error:
        said = str(error)
    return texts, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every variant in one go (``whole``) and in two processes of three steps (``halves``)."""
    folder = tmp_path_factory.mktemp("tensor-parallel")
    write_tokens(folder / "data" / "tiny")
    whole = [config_of(folder, variant, "whole") for variant in VARIANTS]
    stopped = [config_of(folder, variant, "halves", exit_interval=3) for variant in VARIANTS]
    steps = [6] * len(VARIANTS) + [3] * len(VARIANTS)
    assert run_ranks(4, train_all, whole + stopped) == [steps] * 4
    return folder


@pytest.mark.ranks
def test_a_stopped_run_goes_on_exactly_and_its_weights_are_found(folder: Path) -> None:
    halves = [config_of(folder, variant, "halves") for variant in VARIANTS]
    other = config_of(folder, "sequence", "whole") | {
        "model_parallel_size": 1,
        "sequence_parallel": False,
        "train_micro_batch_size_per_gpu": 2,
    }
    still = {"finetune": True, "train_iters": 1, "min_lr": 0.0, "save": str(folder / "tuned")}
    still |= {"optimizer": {"type": "SGD", "params": {"lr": 0.0}}}
    tuned = config_of(folder, "one kv head", "halves") | still
    found = run_ranks(4, resume_and_use, halves, tuned, other)
    for variant in VARIANTS:
        for name in EXACT:
            expected = series(folder / "whole" / variant, name)
            assert len(expected) == (2 if name.startswith("validation") else 6)
            assert series(folder / "halves" / variant, name) == expected, (variant, name)
    # A step of length 0 from the weights alone.
    trained = series(folder / "halves" / "one kv head", "test/lm_loss")
    assert series(folder / "tuned", "test/lm_loss") == trained
    assert len(trained) == 1
    texts, said = found[0]
    assert all(rank == (texts, said) for rank in found)
    for variant, (cached, recomputed) in zip(VARIANTS, texts, strict=True):
        assert cached == recomputed, variant
        assert any(cached), variant
    assert "model_parallel_size 2, this run has 1" in said
    assert "python tools/ckpts/reshard.py --load" in said
