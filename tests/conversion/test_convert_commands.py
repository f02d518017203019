"""Protects the two commands, and what lies between them: a run and samples from an imported model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
import yaml

from megatron.conversion.command_lines import hf_to_neox, neox_to_hf
from megatron.conversion.exporting import compare_export
from megatron.errors import CheckpointError, NeoXError
from tests.conversion.hf_models import VOCAB, save_model
from tests.support.doors import door
from tests.support.tiny import series, write_tokens

IN, OUT = "tools/ckpts/convert_hf_to_neox.py", "tools/ckpts/convert_neox_to_hf.py"


pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a model was imported, fine-tuned, and exported, as a user would."""
    folder = tmp_path_factory.mktemp("a model's way")
    save_model("llama 8/4", folder / "theirs")
    done = door(IN, "--input_dir", "theirs", "--output_dir", "ours", "--tp", "2", folder=folder)
    assert done.status == 0, done.all
    assert "differ from transformers' by" in done.out
    write_tokens(folder / "data" / "tiny", vocab=VOCAB)
    run = {
        "data_path": "data/tiny",
        "split": "80,20,0",
        "num_workers": 0,
        "model_parallel_size": 1,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "train_iters": 8,
        "eval_iters": 1,
        "log_interval": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.003, "betas": [0.9, 0.95]}},
        "save": "tuned",
        "distributed_backend": "gloo",
    }
    written = yaml.safe_load((folder / "ours" / "model.yml").read_text())
    del written["model_parallel_size"]  # written for two ranks, loaded by one
    (folder / "run.yml").write_text(yaml.safe_dump(run))
    (folder / "model.yml").write_text(yaml.safe_dump(written))
    done = door("train.py", "--config-file", "model.yml", "run.yml", folder=folder)
    assert done.status == 0, done.all
    assert "finetune: weights of" in done.all
    options = ("--input-dir", "tuned", "--output-dir", "back", "--max-shard-size", "30KB")
    done = door(OUT, *options, folder=folder)
    assert done.status == 0, done.all
    return folder


def test_the_loss_begins_where_the_model_was_and_falls(trained: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(trained / "theirs")
    losses = series(trained / "tuned", "train/lm_loss")
    assert losses[-1] < losses[0]
    tokens = torch.randint(0, VOCAB, (8, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = model(tokens, labels=tokens).loss.item()
    # Random ids, for a model that has learnt nothing of them: worse than guessing, on both sides.
    assert theirs > math.log(VOCAB) + 1
    assert losses[0] == pytest.approx(theirs, rel=0.2)


def test_transformers_loads_what_came_out(trained: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "back")
    assert tokenizer("w3 w4").input_ids == [0, 5, 6]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(trained / "back")
    assert model.generation_config.eos_token_id == 1
    assert model.config.vocab_size == VOCAB
    config = json.loads((trained / "back" / "config.json").read_bytes())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert len(list((trained / "back").glob("*.safetensors"))) > 1


def test_both_generate_the_same(trained: Path) -> None:
    (trained / "prompts.txt").write_text("w3 w4 w5\n")
    settings = ["--set", "temperature=0", "--set", "maximum_tokens=8"]
    settings += ["--set", "text_gen_type=input-file", "-i", "prompts.txt", "-o", "samples.jsonl"]
    settings += ["--set", "load=tuned"]
    done = door("generate.py", "--config-file", "model.yml", "run.yml", *settings, folder=trained)
    assert done.status == 0, done.all
    text = json.loads((trained / "samples.jsonl").read_text())["text"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "back")
    model = transformers.AutoModelForCausalLM.from_pretrained(trained / "back")
    prompt = tokenizer("w3 w4 w5", return_tensors="pt").input_ids
    ids = model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.size(1) :]
    assert text.split() == tokenizer.decode(ids, skip_special_tokens=True).split()


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (neox_to_hf, "--input_dir nowhere --output_dir x", "holds no checkpoint"),
        (neox_to_hf, "--input_dir tuned --output_dir back", "back is not empty"),
        (
            neox_to_hf,
            "--input_dir tuned --output_dir back",
            "--compare_only compares what is there",
        ),
        (
            neox_to_hf,
            "--input_dir tuned --output_dir theirs --compare_only",
            "look whether the folder is of this step (--iteration N)",
        ),
        (neox_to_hf, "--input_dir tuned --output_dir x --compare_only", "config.json is missing"),
        (
            neox_to_hf,
            "--input_dir tuned --output_dir x --architecture qwen2",
            "use_bias_in_qkv: False",
        ),
        (
            neox_to_hf,
            "--input_dir tuned --output_dir x --max_shard_size much",
            "max_shard_size: 'much'",
        ),
        (hf_to_neox, "--input_dir data --output_dir x", "config.json is missing"),
        (hf_to_neox, "--input_dir theirs --output_dir x --tp 3", "3 ranks cannot share"),
    ],
)
def test_mistakes_are_told_in_a_few_lines(
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[list[str]], None],
    options: str,
    message: str,
) -> None:
    monkeypatch.chdir(trained)
    monkeypatch.setattr(
        "megatron.logging.configure", lambda rank: None
    )  # it would outlive the test
    with pytest.raises(NeoXError) as caught:
        command(options.split())
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 10
    assert not Path("x").exists()


def test_a_mistake_ends_with_a_status(trained: Path) -> None:
    done = door(OUT, "--input_dir", "nowhere", "--output_dir", "x", folder=trained)
    assert done.status == 2
    assert done.err == "error: nowhere holds no checkpoint\n"


@pytest.mark.parametrize(("changed", "found"), [(-1, "as its tokenizer has"), (500, "at most")])
def test_a_folder_of_other_ids_is_not_compared(
    trained: Path, tmp_path: Path, changed: int, found: str
) -> None:
    """The first of them would be alike, and those that were lost would not be noticed."""
    model = transformers.AutoModelForCausalLM.from_pretrained(trained / "back")
    ids = model.config.vocab_size + changed
    model.resize_token_embeddings(ids)
    model.save_pretrained(tmp_path / "cut")
    with pytest.raises(CheckpointError, match=rf"found: {ids:,} ids\n  expected: .*{found}"):
        compare_export(trained / "tuned", tmp_path / "cut")


def test_an_export_is_compared_again_and_stays_as_it_is(trained: Path) -> None:
    def files() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in (trained / "back").iterdir()
        }

    before, around = files(), sorted(trained.iterdir())
    options = ("--input_dir", "tuned", "--output_dir", "back", "--compare-only")
    done = door(OUT, *options, folder=trained)
    assert done.status == 0, done.all
    read, there, compared = done.out.splitlines()
    assert read.endswith("tuned/global_step8")
    assert there.split() == ["read", "back"]
    assert compared.startswith("compared logits of 128 random tokens differ from transformers' by ")
    assert (files(), sorted(trained.iterdir())) == (before, around)
    for useless in (("--dtype", "fp16"), ("--no_save_tokenizer",)):
        done = door(OUT, *options, *useless, folder=trained)
        assert done.status == 2
        assert f"{useless[0]} says how to write a folder" in done.err
