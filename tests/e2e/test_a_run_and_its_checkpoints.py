"""Protects the life of a run's files: metrics, checkpoints kept, steps chosen, scores, generated text.

One small model is trained on English words in ASCII, where a token is a byte; scores and texts are
compared with a slow computation that uses nothing but the model itself.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder
from megatron.model import GPT2Model
from megatron.neox_arguments import NeoXArgs
from tests.support.doors import Done, door
from tests.support.models import SINGLE
from tests.support.tiny import metrics, series, tiny_config

pytestmark = pytest.mark.ranks

STEPS = 7
EOD = 0  # of the byte-level tokenizer
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "away"]
TRAINED = {"iteration", "consumed_samples", "train/lm_loss", "train/learning_rate"} | {
    *("train/grad_norm", "runtime/tokens_per_sec", "runtime/samples_per_sec"),
    *("runtime/iteration_time", "runtime/data_wait"),
}


def config() -> dict[str, object]:
    return tiny_config(
        Path(),
        data_path="data/words",
        train_iters=STEPS,
        lr_decay_iters=STEPS,
        eval_interval=3,
        checkpoint_factor=2,
        keep_last_n_checkpoints=2,
        max_position_embeddings=32,
        maximum_tokens=9,
        temperature=0.0,
    )


def words_in_documents() -> list[list[int]]:
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS, 16)) for _ in range(40)]
    return [[*text.encode("ascii"), EOD] for text in texts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("life")
    (place / "data").mkdir()
    builder = MMapIndexedDatasetBuilder(str(place / "data" / "words.bin"), np.uint16)
    for document in words_in_documents():
        builder.add_item(np.array(document, np.uint16))
        builder.end_document()
    builder.finalize(str(place / "data" / "words.idx"))
    (place / "tiny.yml").write_text(json.dumps(config()))
    return place


def run(folder: Path, script: str, *arguments: str) -> Done:
    done = door(script, "tiny.yml", *arguments, folder=folder)
    assert done.status == 0, done.all
    assert done.err == ""
    return done


@pytest.fixture(scope="module")
def first(folder: Path) -> Done:
    """The run from its start to its end; all tests here stand on it."""
    return run(folder, "train.py")


@pytest.fixture
def save(folder: Path, first: Done) -> Path:
    return folder / "checkpoints"


def trained_model(save: Path, step: int) -> GPT2Model:
    args = NeoXArgs.from_dict(config())
    model = GPT2Model(args.model, padded_vocab_size=512, groups=SINGLE, seed=99)
    file = save / f"global_step{step}" / "mp_rank_00_model_states.pt"
    model.load_state_dict(torch.load(file, weights_only=False)["module"])
    return model.eval()


def test_a_fresh_start_and_an_end_are_said(first: Done) -> None:
    lines = first.out.splitlines()
    assert "no checkpoint in checkpoints yet: starting from step 0" in lines[0]
    assert f"finished after step {STEPS} of {STEPS}" in lines[-1]
    assert "test loss" in lines[-2]
    assert "step 1/7" in first.out
    assert next(i for i, line in enumerate(lines) if "step 1/7" in line) <= 40


def test_metrics_hold_what_is_promised(save: Path) -> None:
    rows = metrics(save)
    assert [set(row) for row in rows if "train/lm_loss" in row] == [TRAINED] * STEPS
    assert series(save, "consumed_samples")[-1] == STEPS * 8
    where = {
        name: [row["iteration"] for row in rows if name in row]
        for name in ("train/lm_loss", "validation/lm_loss", "test/lm_loss")
    }
    assert where["train/lm_loss"] == list(range(1, STEPS + 1))
    assert where["validation/lm_loss"] == [3, 6, 7]
    assert where["test/lm_loss"] == [7]
    for row in rows:
        for name, value in row.items():
            assert isinstance(value, (int, float)), name
            assert math.isfinite(value), name
    # Full precision: an fp32 loss needs up to 9 digits, its mean in fp64 up to 17.
    assert any(len(repr(loss)) > 10 for loss in series(save, "train/lm_loss"))
    for row in rows[:STEPS]:
        if "train/lm_loss" in row:
            rate = row["runtime/tokens_per_sec"] * row["runtime/iteration_time"]
            assert rate == pytest.approx(8 * 16, rel=1e-9)
            assert 0 <= row["runtime/data_wait"] <= row["runtime/iteration_time"]


def test_the_last_two_checkpoints_are_kept(save: Path) -> None:
    names = sorted(path.name for path in save.iterdir())
    assert names == ["global_step6", "global_step7", "latest", "metrics.jsonl"]
    assert (save / "latest").read_text() == "global_step7"
    stored = {path.name for path in (save / "global_step7" / "configs").iterdir()}
    assert stored == {"tiny.yml", "effective_config.json"}


def test_a_run_that_is_done_says_so_and_changes_nothing(folder: Path, save: Path) -> None:
    before = {path: path.read_bytes() for path in save.rglob("*") if path.is_file()}
    done = run(folder, "train.py")
    assert f"the run is done: step {STEPS} of {STEPS}" in done.out
    assert {path: path.read_bytes() for path in save.rglob("*") if path.is_file()} == before


def test_a_chosen_step_goes_on_to_the_same_end(folder: Path, save: Path) -> None:
    before = [
        {key: value for key, value in row.items() if "runtime" not in key} for row in metrics(save)
    ]
    done = run(folder, "train.py", "--iteration", "6")
    assert "global_step6: step 6, 48 samples consumed" in done.out
    assert "step 7/7" in done.out
    after = [{k: v for k, v in row.items() if "runtime" not in k} for row in metrics(save)]
    assert after == before
    none = door("train.py", "tiny.yml", "--iteration", "5", folder=folder)
    assert none.status == 2
    assert "no checkpoint of step 5" in none.err
    assert "global_step6, global_step7" in none.err


def test_another_model_is_refused_with_what_differs(folder: Path, save: Path) -> None:
    options = ("--set", "hidden_size=64", "--set", "train_iters=8")
    done = door("train.py", "tiny.yml", *options, folder=folder)
    assert done.status == 2, done.all
    assert "global_step7: its run trained another model than" in done.err
    assert "hidden_size: 32 → 64\n" in done.err
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 10
    assert (save / "latest").read_text() == "global_step7"


def test_a_check_says_before_what_the_run_says(folder: Path, save: Path) -> None:
    def said(script: str, *arguments: str) -> Done:
        done = door(script, *arguments, "--set", "train_iters=8", folder=folder)
        assert "Traceback" not in done.all
        return done

    check = ("--check", "--num_gpus", "1", "train.py", "tiny.yml")
    fits = said("deepy.py", *check)
    assert fits.status == 0, fits.all
    shown = " ".join(fits.out.split())
    assert f"load {save}/global_step7: step 7, pipe 1 × data 1 × model 1, ZeRO 1, fp32" in shown
    for change in ("zero_optimization.stage=0", "hidden_size=64"):
        foreseen = said("deepy.py", *check, "--set", change)
        refused = said("train.py", "tiny.yml", "--set", change)
        assert (foreseen.status, refused.status) == (2, 2)
        expected = refused.err.removeprefix("error: ").replace("\n", "\n    ").strip()
        assert expected.startswith(f"tiny.yml:1: load: {save}/global_step7")
        assert expected in foreseen.err


@pytest.mark.parametrize("step", [6, 7])
def test_a_score_is_that_of_the_model(folder: Path, save: Path, step: int) -> None:
    options = ("--split", "valid", "--output", "score.json", "--iteration", str(step))
    shown = run(folder, "eval.py", *options).out
    score = json.loads((folder / "score.json").read_text())

    # split 80,10,10 of 40 documents: the validation split is 32 … 35.
    stream = [token for document in words_in_documents()[32:36] for token in document]
    model, total = trained_model(save, step), 0.0
    for begin in range(0, len(stream) - 1, 16):
        window = torch.tensor(stream[begin : begin + 17])
        with torch.no_grad():
            logits = model(window[None, :-1])[0].double()
        chosen = torch.log_softmax(logits, -1).gather(1, window[1:, None])
        total -= float(chosen.sum())
    tokens = len(stream) - 1
    text_bytes = sum(1 for token in stream[1:] if token != EOD)
    assert (score["iteration"], score["tokens"], score["bytes"]) == (step, tokens, text_bytes)
    assert score["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert score["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
    assert score["bits_per_byte"] == pytest.approx(total / text_bytes / math.log(2), rel=1e-5)
    assert f"loss {score['loss']:.4f} nats per token" in shown
    assert (
        "scoring the split valid of data/words: 4 documents\n" in shown.partition("weights of")[0]
    )


def test_generated_text_is_the_models_own(folder: Path, save: Path) -> None:
    (folder / "prompts.txt").write_text("the quick\n\naway\n")
    run(folder, "generate.py", "-i", "prompts.txt", "-o", "out/text.jsonl")
    found = [json.loads(line) for line in (folder / "out" / "text.jsonl").read_text().splitlines()]
    assert [row["context"] for row in found] == ["the quick", "away"]
    keys = ["context", "text", "length", "finished", "message", "duration_seconds"]
    model = trained_model(save, STEPS)
    for row in found:
        assert list(row) == keys
        ids = list(row["context"].encode())
        for _ in range(9):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
            if ids[-1] == EOD:
                break
        new = ids[len(row["context"]) :]
        assert row["length"] == len(new)
        assert row["text"].encode() == bytes(token for token in new if token != EOD)
