"""Protects the tuning of a soft prompt in runs: what learns, what stays, what goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.checkpointing import find_checkpoint, read_weights
from megatron.errors import ConfigError
from megatron.generation import generate
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.run import run_training
from megatron.training.setup import build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

PROMPT = "sequential.0.soft_embedding_weight"
TEXT = "ab"


def config_of(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    place = str(folder / kind)
    changes = {"save": place, "load": place, "train_iters": 6, "eval_iters": 1, **changes}
    return tiny_config(folder, **changes)


def tuned(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    prompt = {"enabled": True, "num_tokens": 5, "init_string": TEXT}
    return config_of(folder, kind, soft_prompt_tuning=prompt, **changes)


def use(world: World, folder: Path) -> tuple[list[int], list[str], str]:
    """Train a model; tune it in one go and in two; the elements that have a state, texts, a refusal."""
    base = config_of(folder, "base")
    start = {"load": str(folder / "base"), "finetune": True}
    half = tuned(folder, "halves", **start, exit_interval=3)
    plain = tuned(folder, "plain", **start, zero_optimization={"stage": 0})
    train_all(world, [base, tuned(folder, "whole", **start), half, tuned(folder, "halves"), plain])
    found = find_checkpoint(folder / "plain", world=world)
    assert found is not None
    state = torch.load(found.path / "mp_rank_00_model_states.pt", weights_only=False)["optimizer"]
    sizes = [each["exp_avg"].numel() for each in state["state"].values()]
    args = NeoXArgs.from_dict(tuned(folder, "whole"), world_size=1)
    parts = build_parts(args, world)
    model, _ = load_trained_model(args, parts)
    texts = []
    for recompute in (False, True):
        settings = replace(args.textgen, maximum_tokens=6, temperature=0.0, recompute=recompute)
        samples = generate(
            model, parts.tokenizer, ["abc", "x"], settings, seed=1, device=torch.device("cpu")
        )
        texts.append(str([sample.text for sample in samples]))
    with pytest.raises(ConfigError) as error:
        run_training(NeoXArgs.from_dict(tuned(folder, "nowhere"), world_size=1), world)
    return sizes, texts, str(error.value)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("soft-prompt")
    write_tokens(folder / "data" / "tiny")
    (found,) = run_ranks(1, use, folder)
    return folder, found


def weights(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    found = find_checkpoint(folder / kind, world=World())
    assert found is not None
    return read_weights(found)


@pytest.mark.ranks
def test_the_prompt_alone_learns(used: tuple[Path, Any]) -> None:
    folder, (sizes, _, _) = used
    before, after = weights(folder, "base"), weights(folder, "whole")
    assert after.keys() - before.keys() == {PROMPT}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    table = before["sequential.0.word_embeddings.weight"]
    started = table[torch.tensor([ord(letter) for letter in "ababa"])]
    moved = (after[PROMPT] - started).abs()
    assert moved.min() > 0
    # Six steps of Adam at up to 0.01 each.
    assert moved.max() < 0.07
    assert sizes == [5 * 32]
    losses = series(folder / "whole", "train/lm_loss")
    assert len(losses) == 6


@pytest.mark.ranks
def test_a_stopped_tuning_goes_on_exactly(used: tuple[Path, Any]) -> None:
    folder, _ = used
    for name in ("train/lm_loss", "train/grad_norm", "validation/lm_loss"):
        expected = series(folder / "whole", name)
        assert series(folder / "halves", name) == expected
        assert series(folder / "plain", name) == pytest.approx(expected, rel=1e-5)


@pytest.mark.ranks
def test_texts_are_the_same_with_a_cache(used: tuple[Path, Any]) -> None:
    _, (_, (cached, recomputed), _) = used
    assert cached == recomputed
    assert len(cached) > len("['', '']")


@pytest.mark.ranks
def test_a_prompt_needs_a_model(used: tuple[Path, Any]) -> None:
    assert used[1][2].startswith(
        "soft_prompt_tuning: trains nothing but the prompt, and there is no"
    )


@pytest.mark.ranks
def test_tensor_parallel_ranks_tune_the_same_prompt(used: tuple[Path, Any]) -> None:
    folder, _ = used
    start = {"load": str(folder / "base"), "finetune": True, "train_micro_batch_size_per_gpu": 4}
    run_ranks(2, train_all, [tuned(folder, "split", **start, model_parallel_size=2)])
    for name in ("train/lm_loss", "train/grad_norm"):
        expected = series(folder / "whole", name)
        assert series(folder / "split", name) == pytest.approx(expected, rel=1e-5)
