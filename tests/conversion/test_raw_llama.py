"""Protects the way of Llama's published files into a checkpoint: it computes what transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch import nn
from transformers.models.llama import modeling_llama

from megatron.checkpointing import find_checkpoint
from megatron.conversion import raw_llama
from megatron.conversion.command_lines import raw_llama_to_neox
from megatron.conversion.comparison import logits_of
from megatron.conversion.our_checkpoint import WholeWeights
from megatron.conversion.raw_reference import RawModel, Scaling, turns
from megatron.errors import CheckpointError
from megatron.neox_arguments import NeoXArgs
from tests.conversion.hf_models import VOCAB, save_tokenizer
from tests.conversion.raw_llama_writer import RawForm, write_raw_llama

# The case "llama 8/4" has these rotations; its width is below that of models that lengthen by 8.
SCALED = (("rope_theta", 5000.0), ("use_scaled_rope", True))
TOKENS = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(3))


def convert(folder: Path, *options: str) -> NeoXArgs:
    raw_llama_to_neox(
        ["--input_dir", str(folder / "raw"), "--output_dir", str(folder / "ours"), *options]
    )
    return NeoXArgs.from_ymls([folder / "ours" / "model.yml"])


def ours(folder: Path, args: NeoXArgs) -> torch.Tensor:
    info = find_checkpoint(folder / "ours")
    assert info is not None
    weights = WholeWeights(info, args.model, VOCAB)
    return logits_of(args.model, VOCAB, weights.read, TOKENS)


@torch.no_grad()
def theirs(model: nn.Module) -> torch.Tensor:
    logits: torch.Tensor = model(TOKENS).logits
    return logits


@pytest.mark.parametrize(
    ("case", "form", "options"),
    [
        ("llama 4/1", RawForm(), ()),
        ("llama 4/1", RawForm(files=2, dtype=torch.bfloat16), ("--num_output_shards", "4")),
        ("llama 4/1", RawForm(files=4, table_by_rows=True), ("--pipeline_parallel", "2")),
        ("llama 8/4", RawForm(files=2, table_by_rows=True), ("--num_output_shards", "2")),
        ("llama 8/4", RawForm(files=4), ("--num_output_shards", "4", "--pipeline_parallel")),
    ],
)
def test_it_computes_what_transformers_does(
    tmp_path: Path, case: str, form: RawForm, options: tuple[str, ...]
) -> None:
    model = write_raw_llama(tmp_path / "raw", case, form)
    args = convert(tmp_path, *options)
    found, expected = ours(tmp_path, args), theirs(model)
    assert expected.abs().max() > 1
    assert torch.allclose(found, expected, rtol=0, atol=1e-4)
    step = tmp_path / "ours" / "global_step0"
    assert (step / "layer_02-model_00-model_states.pt").exists() == (
        "--pipeline_parallel" in options
    )
    assert args.model.precision == ("bfloat16" if form.dtype == torch.bfloat16 else "fp32")


def test_it_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_raw_llama(tmp_path / "raw" / "7B", "llama 8/4", RawForm(files=2, params=SCALED))
    save_tokenizer(tmp_path / "raw")  # beside the folders of the sizes, as it was published
    args = convert(tmp_path, "--model_size", "7B")
    said = capsys.readouterr().out
    assert "differ from a plain computation's on the published weights by" in said
    assert "use_scaled_rope lengthens: 32 is taken" in said
    keys = yaml.safe_load((tmp_path / "ours" / "model.yml").read_text())
    assert (keys["tokenizer_type"], keys["rotary_scaling"]) == ("HFTokenizer", "llama3")
    assert (args.model.rotary_scaling_factor, args.model.rotary_original_positions) == (32.0, 8192)
    assert (args.model.max_position_embeddings, args.model.seq_length) == (131072, 2048)


def test_another_factor_of_rotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_raw_llama(tmp_path / "raw", "llama 4/1", RawForm(params=SCALED))
    args = convert(tmp_path, "--rope_scaling_factor", "8")
    assert args.model.rotary_scaling_factor == 8.0
    assert "is taken" not in capsys.readouterr().out


@pytest.mark.parametrize("scaling", [None, Scaling(8.0), Scaling(32.0)])
def test_the_plain_computation_turns_as_transformers_does(scaling: Scaling | None) -> None:
    """At the width of a published head, where scaling shows: on every speed, far into a text."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": 500000.0}
    if scaling is not None:
        parameters |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=256, num_attention_heads=2, rope_parameters=parameters
    )
    rotary = modeling_llama.LlamaRotaryEmbedding(config)
    cosines, _ = rotary(torch.zeros(1), torch.arange(3000)[None])
    model = RawModel(1, 2, 2, 1e-5, 500000.0, scaling, is_tied=False)
    found = turns(model, 3000, 128)
    assert torch.allclose(found.real, cosines[0, :, :64].float(), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 5}, r"params\.json: sliding_window\n  found: 5"),
        ({"n_layers": 3}, r"its params\.json describes\n  found:\n    layers\.2"),
        ({"n_kv_heads": 2}, r"16 rows in all files, of which files 0 and 1 hold"),
        ({"rope_theta": 0.5}, r"params\.json: rope_theta\n  found: 0\.5"),
    ],
)
def test_numbers_that_are_not_those_of_the_files(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_raw_llama(tmp_path / "raw", "llama 8/4", RawForm(files=2))
    path = tmp_path / "raw" / "params.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path)
    assert not (tmp_path / "ours").exists()


def test_files_that_are_missing_or_of_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    write_raw_llama(folder, "llama 8/4", RawForm(files=4))
    (folder / "consolidated.02.pth").rename(tmp_path / "third")
    with pytest.raises(CheckpointError, match=r"consolidated\.02\.pth is missing\n  found: .*03"):
        convert(tmp_path)
    tensors = torch.load(tmp_path / "third", weights_only=True)
    del tensors["norm.weight"]
    torch.save(tensors, folder / "consolidated.02.pth")
    with pytest.raises(
        CheckpointError, match=r"norm\.weight is \(32,\) in file 0 and not there in file 2"
    ):
        convert(tmp_path)
    (folder / "params.json").unlink()
    with pytest.raises(CheckpointError, match=r"expected: a folder with params\.json"):
        convert(tmp_path)


def test_rows_that_differ_are_found_by_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw_llama(tmp_path / "raw", "llama 8/4", RawForm())
    monkeypatch.setattr(raw_llama, "_halves", lambda rows, width: rows)
    with pytest.raises(CheckpointError, match="do not compute the same"):
        convert(tmp_path)
    assert not (tmp_path / "ours").exists()


def test_tiktokens_list_is_not_taken_for_a_sentencepiece(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_raw_llama(tmp_path / "raw", "llama 4/1", RawForm())
    (tmp_path / "raw" / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    convert(tmp_path)
    assert "tokenizer.model is a list of tiktoken's" in capsys.readouterr().out
    assert "set tokenizer_type" in (tmp_path / "ours" / "model.yml").read_text()
