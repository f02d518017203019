"""Protects which text is scored, what is said of it, and what is refused before any work."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from megatron.conversion import import_folder
from megatron.errors import ConfigError, DataError
from megatron.evaluation.run import add_evaluation_arguments, run_evaluation
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from tests.conversion.hf_models import save_model
from tests.data.token_files import write_documents
from tests.support.ranks import run_ranks

SIZES = {"data_path": None, "distributed_backend": "gloo", "train_micro_batch_size_per_gpu": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 100 ids, and ten documents of ten tokens each."""
    root = tmp_path_factory.mktemp("scored")
    save_model("llama 8/4", root / "hf")
    import_folder(root / "hf", root / "ours")
    write_documents(root / "text", [[10 * d + t for t in range(10)] for d in range(10)])
    write_documents(root / "strange", [[1, 2, 3, 200]])
    write_documents(root / "short", [[7]])
    return root


def evaluated(folder: Path, *options: str, world: World | None = None, **changes: Any) -> str:
    world = world or World()
    parser = argparse.ArgumentParser()
    add_evaluation_arguments(parser)
    args = NeoXArgs.from_ymls(
        [folder / "ours" / "model.yml"],
        [f"{key}={json.dumps(value)}" for key, value in (SIZES | changes).items()],
    )
    text = run_evaluation(args, world, parser.parse_args(options))
    assert (text is not None) == world.is_first
    return text or ""


def on_a_rank(world: World, folder: Path) -> str:
    return evaluated(folder, "--data", str(folder / "text"), world=world)


@pytest.mark.ranks
def test_ranks_find_the_same_and_one_says_it(folder: Path) -> None:
    said, nothing = run_ranks(2, on_a_rank, folder)
    alone = on_a_rank(World(), folder)
    # Up to how long it took.
    assert said.rpartition(",")[0] == alone.rpartition(",")[0]
    assert nothing == ""


def test_a_split_and_a_file_of_the_same_documents(folder: Path, tmp_path: Path) -> None:
    prefix = str(folder / "text")
    output = tmp_path / "new" / "score.json"
    text = evaluated(folder, "--output", str(output), data_path=prefix, split="0,1,0")
    facts = json.loads(output.read_text())
    assert facts["tokens"] == 99  # of 100, the first has nothing in front of it
    assert facts["perplexity"] == pytest.approx(math.exp(facts["loss"]))
    assert text.startswith(f"step 0 on the split valid of {prefix}: loss {facts['loss']:.4f} nats")
    assert "(99 tokens, " in text
    for options, changes in (
        (("--data", prefix), {}),
        (("--split", "test"), {"test_data_paths": [prefix]}),
    ):
        same = evaluated(folder, *options, **changes)
        assert same.partition(": ")[0] == f"step 0 on {prefix}"
        assert f"loss {facts['loss']:.4f} nats" in same
    part = evaluated(folder, "--split", "train", data_path=prefix, split="3,7,0")
    assert "(29 tokens, " in part


@pytest.mark.parametrize(
    ("options", "changes", "error", "message"),
    [
        ((), {}, ConfigError, "nothing to score: set data_path, or pass --data PREFIX"),
        (
            (),
            {"valid_data_paths": ["a", "b"]},
            ConfigError,
            "nothing to score: valid_data_paths names several: pass --data PREFIX",
        ),
        (
            (),
            {"data_path": "text", "split": "1,0,0"},
            DataError,
            "the split valid of text is empty: split '1,0,0' divides its 10 documents at",
        ),
        (("--data", "short"), {}, DataError, "short: holds 1 tokens: there is nothing to predict"),
        (("--data", "strange"), {}, DataError, "200"),
        (("--data", "text", "--output", "ours"), {}, DataError, "--output ours: .* is a folder"),
        (
            ("--data", "text", "--output", "text.idx/score"),
            {},
            DataError,
            r"--output text\.idx/score: cannot be written: File exists",
        ),
    ],
)
def test_what_cannot_be_scored(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=message):
        evaluated(folder, *options, **changes)
