"""Protects whole runs on ranks that share sequences: losses, dropout, exact resume, scores, texts."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from megatron.evaluation.run import run_evaluation
from megatron.generation import generate
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.seeds import seed_dropout
from megatron.runtime.world import World
from megatron.training import step
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

EXACT = ("train/lm_loss", "train/grad_norm", "validation/lm_loss", "test/lm_loss")
DOCUMENTS = {"reset_attention_mask": True, "reset_position_ids": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "dropout": DOCUMENTS
    | {
        "precision": "bfloat16",
        "num_kv_heads": 1,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "checkpoint_activations": True,
        "num_workers": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    },
    "exact": DOCUMENTS
    | {"pos_emb": "learned", "eod_mask_loss": True, "zero_optimization": {"stage": 0}},
}


def config_of(
    folder: Path, variant: str, kind: str, context: int, **changes: Any
) -> dict[str, Any]:
    place = str(folder / kind / variant)
    return tiny_config(
        folder,
        context_parallel_size=context,
        train_iters=6,
        train_micro_batch_size_per_gpu=4,
        eval_interval=3,
        eval_iters=1,
        save=place,
        load=place,
        **VARIANTS[variant],
        **changes,
    )


def score(world: World, config: dict[str, Any], output: Path) -> str | None:
    """Of the test split, as ``eval.py`` finds it."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    return run_evaluation(args, world, Namespace(split="test", data=None, output=output))


def texts(world: World, config: dict[str, Any]) -> list[str]:
    """Continuations of prompts of lengths that ranks cannot share."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    model, _ = load_trained_model(args, parts)
    settings = replace(args.textgen, maximum_tokens=5, temperature=0.0)
    found = generate(
        model,
        parts.tokenizer,
        ["abc", "a longer one"],
        settings,
        seed=1,
        device=torch.device("cpu"),
    )
    return [sample.text for sample in found]


def resume_and_use(world: World, folder: Path) -> tuple[list[str], list[int]]:
    """Texts, and the seeds of this rank's dropout."""
    seeds: list[int] = []

    def seeding(*args: Any, **place: Any) -> None:
        seed_dropout(*args, **place)
        seeds.append(torch.initial_seed())

    with mock.patch.object(step, "seed_dropout", seeding):
        train_all(world, [config_of(folder, variant, "halves", 2) for variant in VARIANTS])
    trained = config_of(folder, "exact", "whole", 2)
    score(world, trained, folder / "shared.json")
    return texts(world, trained), seeds


def alone(world: World, folder: Path) -> list[str]:
    """The same run on one rank; and what one rank makes of the weights of two."""
    train_all(world, [config_of(folder, "exact", "alone", 1)])
    trained = config_of(folder, "exact", "whole", 1)
    score(world, trained, folder / "alone.json")
    return texts(world, trained)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every variant in one go (``whole``) and in two processes of three steps (``halves``)."""
    folder = tmp_path_factory.mktemp("context-parallel")
    write_tokens(folder / "data" / "tiny", length=12)
    whole = [config_of(folder, variant, "whole", 2) for variant in VARIANTS]
    stopped = [config_of(folder, variant, "halves", 2, exit_interval=3) for variant in VARIANTS]
    assert run_ranks(2, train_all, whole + stopped) == [[6, 6, 3, 3]] * 2
    return folder


@pytest.mark.ranks
def test_a_stopped_run_goes_on_exactly_and_is_that_of_one_rank(folder: Path) -> None:
    found = run_ranks(2, resume_and_use, folder)
    shared, seeds = zip(*found, strict=True)
    # Three steps of two micro-batches on each of two ranks, which hold other tokens and heads.
    assert len({*seeds[0], *seeds[1]}) == 2 * len(seeds[0]) == 12
    for variant in VARIANTS:
        for name in EXACT:
            expected = series(folder / "whole" / variant, name)
            assert len(expected) == {"train": 6, "validation": 2, "test": 1}[name.split("/")[0]]
            assert series(folder / "halves" / variant, name) == expected, (variant, name)
    (one,) = run_ranks(1, alone, folder)
    for name in EXACT:
        expected, got = (series(folder / kind / "exact", name) for kind in ("alone", "whole"))
        assert got == pytest.approx(expected, rel=1e-5), name
    assert shared == (one, one)
    assert any(one)
    scores = [json.loads((folder / f"{who}.json").read_text()) for who in ("shared", "alone")]
    assert scores[0].pop("data") == scores[1].pop("data")
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    manifest = json.loads((folder / "whole/exact/global_step6/manifest.json").read_text())
    layout = manifest["layout"]
    assert (layout["data_parallel_size"], layout["context_parallel_size"]) == (1, 2)
