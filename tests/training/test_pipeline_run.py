"""Protects whole runs in pipelines: the numbers of a plain run, exact resume, and weights for any layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from megatron.data.blended_dataset import BlendedDataset
from megatron.data.boundaries import Boundaries
from megatron.data.indexed_dataset import make_dataset
from megatron.data.sample_dataset import SampleDataset
from megatron.errors import CheckpointError
from megatron.evaluation import score_documents
from megatron.evaluation.windows import Windows
from megatron.generation import generate
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

EXACT = ("train/lm_loss", "train/grad_norm", "validation/lm_loss")
APART = {"reset_position_ids": True, "reset_attention_mask": True}
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
STILL = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "checkpoint_activations": False}
TIED = {"no_weight_tying": False, "pos_emb": "learned"}
# Each on four ranks, by its name: a layout with the rest of what differs.
VARIANTS: dict[str, dict[str, Any]] = {
    "four stages": {"pipe_parallel_size": 4, **APART, **TIED, "checkpoint_activations": True},
    "two copies": {"pipe_parallel_size": 2, "zero_optimization": {"stage": 0}, **TIED},
    "half": {
        "pipe_parallel_size": 2,
        "model_parallel_size": 2,
        "sequence_parallel": True,
        "precision": "bfloat16",
    },
    "split": {"pipe_parallel_size": 2, "model_parallel_size": 2, **TIED},
}

# The others in the slow tests only.
SAMPLE = ["four stages"]


def config_of(folder: Path, variant: str, kind: str, **changes: Any) -> dict[str, Any]:
    place = str(folder / kind / variant)
    shape = DROPOUT | VARIANTS[variant] | changes
    pipe, model = shape.get("pipe_parallel_size", 0), shape.get("model_parallel_size", 1)
    return tiny_config(
        folder,
        train_iters=6,
        # Four micro-batches of each pipeline.
        train_micro_batch_size_per_gpu=2 if pipe * model == 4 else 1,
        eval_interval=3,
        eval_iters=1,
        save=place,
        load=place,
        **shape,
    )


def used(world: World, config: dict[str, Any]) -> tuple[float, list[str]]:
    """The loss that a checkpoint has on the data, and what it writes."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    model, _ = load_trained_model(args, parts)
    documents = make_dataset(str(args.data.data_path))
    windows = Windows(documents, 0, 20, seq_length=16, boundaries=Boundaries.of(args.data))
    score = score_documents(
        model,
        windows,
        tokenizer=parts.tokenizer,
        groups=model.groups,
        device=parts.device,
        micro_batch_size=3,
    )
    settings = replace(args.textgen, maximum_tokens=6, temperature=0.0)
    texts = [
        sample.text
        for recompute in (False, True)
        for sample in generate(
            model,
            parts.tokenizer,
            ["abc", "a longer one"],
            replace(settings, recompute=recompute),
            seed=1,
            device=torch.device("cpu"),
        )
    ]
    return score.loss, texts


def resume_and_use(
    world: World, halves: list[dict[str, Any]], other: dict[str, Any]
) -> tuple[list[Any], str]:
    """Finish the runs, use each; what is said to another number of stages."""
    train_all(world, halves)
    found = [used(world, config) for config in halves]
    try:
        train_all(world, [other])
    except CheckpointError as error:
        return found, str(error)
    return found, ""


def all_used(world: World, configs: list[dict[str, Any]]) -> list[Any]:
    return [used(world, config) for config in configs]


def plain(config: dict[str, Any]) -> dict[str, Any]:
    return config | {
        "pipe_parallel_size": 0,
        "model_parallel_size": 1,
        "sequence_parallel": False,
        "train_micro_batch_size_per_gpu": 2,
    }


def require_exact_resume_and_use(folder: Path, variants: list[str]) -> None:
    """Train each in one go (``whole``) and in two worlds of three steps (``halves``), and use it."""
    write_tokens(folder / "data" / "tiny")
    whole = [config_of(folder, variant, "whole") for variant in variants]
    stopped = [config_of(folder, variant, "halves", exit_interval=3) for variant in variants]
    steps = [6] * len(variants) + [3] * len(variants)
    assert run_ranks(4, train_all, whole + stopped) == [steps] * 4

    halves = [config_of(folder, variant, "halves") for variant in variants]
    other = plain(config_of(folder, variants[0], "halves", **STILL))
    ranks = run_ranks(4, resume_and_use, halves, other)
    for variant in variants:
        for name in EXACT:
            expected = series(folder / "whole" / variant, name)
            assert len(expected) == (2 if name.startswith("validation") else 6)
            assert series(folder / "halves" / variant, name) == expected, (variant, name)
    found, said = ranks[0]
    assert all(rank == (found, said) for rank in ranks)
    pipe = VARIANTS[variants[0]]["pipe_parallel_size"]
    assert f"pipe_parallel_size {pipe}, this run has 0" in said
    # One process reads the files of those that are not split.
    names = [name for name in variants if "model_parallel_size" not in VARIANTS[name]]
    alone = run_ranks(1, all_used, [plain(config_of(folder, name, "halves")) for name in names])[0]
    for name, (loss, texts) in zip(names, alone, strict=True):
        assert found[variants.index(name)] == (pytest.approx(loss, rel=1e-5), texts), name
    for _, texts in found:
        assert texts[:2] == texts[2:]  # with a cache and without
        assert any(texts)


@pytest.mark.ranks
def test_a_stopped_run_goes_on_exactly_and_its_weights_serve_any_layout(tmp_path: Path) -> None:
    require_exact_resume_and_use(tmp_path, SAMPLE)


@pytest.mark.slow
@pytest.mark.ranks
def test_so_it_does_in_every_layout(tmp_path: Path) -> None:
    require_exact_resume_and_use(tmp_path, [name for name in VARIANTS if name not in SAMPLE])


def compared(world: World, configs: list[dict[str, Any]], unread: list[int]) -> list[int]:
    """Train; ranks in ``unread`` must not read a sample."""
    refuse = mock.Mock(side_effect=AssertionError("this stage reads no data"))
    if world.rank not in unread:
        return train_all(world, configs)
    with (
        mock.patch.object(SampleDataset, "read_into", refuse),
        mock.patch.object(BlendedDataset, "read_into", refuse),
    ):
        return train_all(world, configs)


@pytest.mark.ranks
def test_the_numbers_are_those_of_a_plain_run_and_stages_between_read_nothing(
    tmp_path: Path,
) -> None:
    """One stage, dropout too, to the last bit; four without dropout, with documents kept apart."""
    write_tokens(tmp_path / "data" / "tiny")
    four = config_of(tmp_path, "four stages", "four", **STILL)
    recomputed = four | {"checkpoint_activations": True, "save": str(tmp_path / "again")}
    runs = {
        "plain": plain(four),
        "plain dropout": plain(four) | DROPOUT,
        "one dropout": plain(four) | DROPOUT | {"pipe_parallel_size": 1},
    }
    runs = {name: run | {"save": str(tmp_path / name), "load": None} for name, run in runs.items()}
    run_ranks(1, train_all, list(runs.values()))
    run_ranks(4, compared, [four, recomputed | {"load": None}], [1, 2])
    for name in EXACT:
        once, one = series(tmp_path / "plain dropout", name), series(tmp_path / "one dropout", name)
        assert one == pytest.approx(once, rel=1e-12), name
        here = series(tmp_path / "four" / "four stages", name)
        assert here == pytest.approx(series(tmp_path / "plain", name), rel=1e-5), name
        assert series(tmp_path / "again", name) == here, name
