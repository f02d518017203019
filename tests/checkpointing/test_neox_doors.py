"""Protects the way of a model that GPT-NeoX trained: it trains on, gives samples, and goes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from megatron.data.indexed_dataset import make_dataset
from tests.checkpointing.neox_readers import Reading, config_of
from tests.checkpointing.neox_writer import STEP, Form, write_neox
from tests.conversion.hf_models import VOCAB, save_tokenizer
from tests.support.doors import door
from tests.support.tiny import series, write_tokens

CASE = "gpt_neox parallel untied"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("neox doors")
    model = write_neox(folder / "theirs", CASE, Form(layers=True, old=True, objects=True))
    save_tokenizer(folder)
    write_tokens(folder / "data" / "tiny", vocab=VOCAB)
    config = config_of(
        Reading(folder / "theirs", CASE),
        data_path=str(folder / "data" / "tiny"),
        split="80,20,0",
        seq_length=16,
        num_workers=0,
        train_micro_batch_size_per_gpu=4,
        train_iters=STEP + 2,
        eval_iters=1,
        eval_interval=100,
        log_interval=1,
        save="ours",
        optimizer={"type": "SGD", "params": {"lr": 1e-12}},
        weight_decay=0.0,
    )
    (folder / "run.yml").write_text(yaml.safe_dump(config))
    return folder, model


@pytest.fixture(scope="module")
def trained(written: tuple[Path, nn.Module]) -> str:
    done = door("train.py", "--config-file", "run.yml", folder=written[0])
    assert done.status == 0, done.all
    return done.all


def test_training_goes_on_from_its_step(written: tuple[Path, nn.Module], trained: str) -> None:
    folder, model = written
    assert "is GPT-NeoX's: its weights and its step came along: 5, at which 20 samples" in trained
    assert "Adam starts afresh" in trained
    losses = series(folder / "ours", "train/lm_loss")
    assert len(losses) == 2
    tokens = torch.from_numpy(
        np.concatenate([make_dataset(str(folder / "data" / "tiny"), "mmap")[i] for i in range(48)])
    ).long()
    windows = tokens[: 17 * (len(tokens) // 17)].view(-1, 17)
    with torch.no_grad():
        mean = model(windows, labels=windows).loss.item()
    # Random ids, and a model that has learnt nothing of them: any four samples are like all.
    assert losses[0] == pytest.approx(mean, rel=0.2)


def merged(parts: list[Tensor], dim: int | None) -> Tensor:
    return parts[0] if dim is None else torch.cat(parts, dim=dim)


def test_a_tool_for_theirs_reads_ours(written: tuple[Path, nn.Module], trained: str) -> None:
    """Files, names, rows as tools that were written for GPT-NeoX look for them."""
    folder, model = written
    step = folder / "ours" / f"global_step{STEP + 2}"
    assert (folder / "ours" / "latest").read_text().strip() == step.name
    assert yaml.safe_load(next((step / "configs").glob("*.yml")).read_text())["num_layers"] == 2
    module = torch.load(step / "mp_rank_00_model_states.pt", weights_only=False)["module"]
    theirs = model.state_dict()
    names = {"gpt_neox.embed_in.weight": "sequential.0.word_embeddings.weight"}
    for number in range(2):
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "attention.query_key_value",
            "attention.dense",
            "mlp.dense_h_to_4h",
            "mlp.dense_4h_to_h",
        ):
            ours = name.replace("dense_h_to_4h", "linear1").replace("dense_4h_to_h", "linear2")
            for kind in ("weight", "bias"):
                names[f"gpt_neox.layers.{number}.{name}.{kind}"] = (
                    f"sequential.{number + 2}.{ours}.{kind}"
                )
    for kind in ("weight", "bias"):
        names[f"gpt_neox.final_layer_norm.{kind}"] = f"sequential.5.norm.{kind}"
    names[next(name for name in theirs if name in ("lm_head.weight", "embed_out.weight"))] = (
        "sequential.6.final_linear.weight"
    )
    assert sorted(names.values()) == sorted(module)
    for name, ours in names.items():
        rows = theirs[name].shape[0]
        assert torch.allclose(module[ours][:rows], theirs[name], rtol=0, atol=1e-6), ours


@pytest.mark.slow
def test_scores_and_samples(written: tuple[Path, nn.Module]) -> None:
    folder, model = written
    (folder / "more.yml").write_text(
        yaml.safe_dump(
            {
                "text_gen_type": "input-file",
                "sample_input_file": "prompts.txt",
                "sample_output_file": "samples.jsonl",
                "maximum_tokens": 6,
                "temperature": 0.0,
            }
        )
    )
    (folder / "prompts.txt").write_text("w3 w4 w5\n")
    done = door("generate.py", "--config-file", "run.yml", "more.yml", folder=folder)
    assert done.status == 0, done.all
    sample: dict[str, Any] = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
    ids = torch.tensor([[0, 5, 6, 7]])
    with torch.no_grad():
        for _ in range(6):
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
            if ids[0, -1] == 1:
                break
    words = [f"w{number - 2}" for number in ids[0, 4:].tolist() if number > 1]
    assert sample["text"].split() == words, (sample, words)
