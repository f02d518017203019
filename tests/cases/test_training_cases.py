"""Small inputs that broke trainers of this family in the wild, through the doors as users come in.

Text → tokens has its cases in ``tests/preprocessing/test_preprocess_data.py``, batch arithmetic and
the keys that reach DeepSpeed in ``tests/neox_arguments``, the index in ``tests/data``.
"""

from __future__ import annotations

import string
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.preprocessing.test_preprocess_data import dump
from tests.support.doors import ROOT, Done, door, environment, finish, start
from tests.support.tiny import metrics, series

pytestmark = pytest.mark.ranks

BASE = """\
{ "pipe_parallel_size": 0, "model_parallel_size": 1,
  "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
  "seq_length": 8, "max_position_embeddings": 8, "pos_emb": "rotary", "no_weight_tying": true,
  "attention_config": [[["global"], 2]],
  "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1.0e-8}},
  "min_lr": 0.0001, "lr_decay_style": "cosine", "warmup": 0.0, "lr_decay_iters": 6,
  "zero_optimization": {"stage": 0}, "precision": "fp32",
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "train_iters": 3,
  "data_impl": "mmap", "data_path": "out/c_text_document", "split": "1,0,0",
  "tokenizer_type": "HFTokenizer", "vocab_file": "tok.json",
  "eval_interval": 1000, "eval_iters": 0, "checkpoint_factor": 3, "log_interval": 1,
  "save": "ckpt", "load": "ckpt", "distributed_backend": "gloo" }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base.yml``, ``tok.json`` (EOD 0, padding 1, a = 2 … z = 27) and 20 lines of text in tokens."""
    place = tmp_path_factory.mktemp("cases")
    vocab = {"<|endoftext|>": 0, "<|padding|>": 1}
    vocab.update({c: i + 2 for i, c in enumerate(string.ascii_lowercase)})
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<|padding|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(place / "tok.json"))
    (place / "base.yml").write_text(BASE)
    (place / "c.jsonl").write_text('{"text": "a b c d e f g h i j"}\n' * 20)
    tool = str(ROOT / "tools" / "datasets" / "preprocess_data.py")
    options = "--vocab-file tok.json --dataset-impl mmap --tokenizer-type HFTokenizer --append-eod"
    files = "--input c.jsonl --output-prefix out/c"
    command = [sys.executable, tool, *options.split(), *files.split()]
    subprocess.run(command, cwd=place, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return place


def test_the_base_from_text_to_a_checkpoint(folder: Path) -> None:
    tokens = dump(folder / "out" / "c_text_document")
    assert tokens == ("uint16", [[*range(2, 12), 0]] * 20, list(range(21)))
    done = finish(start("deepy.py", "train.py", "base.yml", folder=folder))
    assert done.status == 0, done.all
    assert done.err == ""
    # 20 documents of 11 tokens: (220 - 1) // 8 samples.
    assert "20 documents; an epoch has 220 tokens, 27 samples; 3 steps take 6 samples" in done.out
    assert (folder / "ckpt" / "latest").read_text() == "global_step3"
    assert series(folder / "ckpt", "iteration") == [1, 2, 3]
    assert series(folder / "ckpt", "consumed_samples") == [2, 4, 6]
    # 0.0001 + 0.0009 × (1 + cos(π k / 6)) / 2 for k = 0, 1, 2
    rates = [0.001, 0.0009397114317029975, 0.000775]
    assert series(folder / "ckpt", "train/learning_rate") == pytest.approx(rates, rel=1e-12)
    losses = series(folder / "ckpt", "train/lm_loss")
    assert 5.2 > losses[0] > losses[1] > losses[2]  # a fair guess among 128 is ln 128 = 4.85


def said(folder: Path, name: str, *files: str) -> str:
    done = door("deepy.py", "train.py", *files, folder=folder)
    assert done.status == 2, done.all
    assert done.out == ""
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 10
    assert name in done.err
    return done.err


def test_case_7_duplicate_keys(folder: Path) -> None:
    texts = {
        "d1": '{"train_iters": 10, "train_iters": 20}',
        "d2": '{"seq-length": 8, "seq_length": 16}',
        "d3": '{"train-iters": 10}',
        "d4": '{"train-iters": 10}',
        "d5": '{"optimizer": {"type": "Adam", "params": {"lr": 0.1, "lr": 0.001}}}',
    }
    for name, text in texts.items():
        (folder / f"{name}.yml").write_text(text)
    assert "d1.yml:1: train_iters: given twice" in said(folder, "d1.yml", "d1.yml")
    assert "d2.yml:1: seq_length: given twice" in said(folder, "d2.yml", "d2.yml")
    both = said(folder, "d4.yml", "d3.yml", "d4.yml")
    assert "train_iters: given twice, first in d3.yml:1" in both
    assert "optimizer.params.lr: given twice" in said(folder, "d5.yml", "d5.yml")


def test_case_8_unknown_keys_and_broken_yaml(folder: Path) -> None:
    text = '{"train_iters": 3, "save_interval": 500, "hiden_size": 32}'
    (folder / "t.yml").write_text(text)
    unknown = said(folder, "t.yml", "t.yml")
    assert "t.yml:1: save_interval: " in unknown
    assert "checkpoint_factor" in unknown
    assert "t.yml:1: hiden_size: unknown key; did you mean hidden_size?" in unknown
    text = '{\n  "num-samples": 10\n  "sample-input-file": "prompt.txt",\n}\n'
    (folder / "comma.yml").write_text(text)
    broken = said(folder, "comma.yml", "comma.yml")
    assert "comma.yml:3: column 22: " in broken
    assert "missing at the end of line 2" in broken


@pytest.mark.parametrize(
    ("split", "documents", "empty"),
    [
        ("9998,0.002,0.002", {"train": 20}, ["valid", "test"]),
        ("969,30,1", {"train": 19, "valid": 1}, ["test"]),
        ("1000,0,0", {"train": 20}, ["valid", "test"]),
    ],
)
def test_case_11_splits_with_nothing_in_them(
    folder: Path, split: str, documents: dict[str, int], empty: list[str]
) -> None:
    changes = {"split": split, "eval_iters": "1", "save": f"split {split}", "load": "null"}
    options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    done: Done = door("train.py", "base.yml", *options, folder=folder)
    assert done.status == 0, done.all
    for name, count in documents.items():
        assert f"{name:<5}   {count} documents; " in done.out
    for name in empty:
        lines = [line for line in done.out.splitlines() if f"the {name} split" in line]
        assert len(lines) == 1
        assert "has 0 of 20 documents" in lines[0]
        assert "it is not evaluated" in lines[0]
    evaluated = {
        key for row in metrics(folder / f"split {split}") for key in row if "lm_loss" in key
    }
    assert evaluated == {"train/lm_loss"} | (
        {"validation/lm_loss"} if "valid" in documents else set()
    )
