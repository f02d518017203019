"""Protects the way in for Llama's own files: any number gives the model that transformers computes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml

from megatron.conversion import Layout, import_model, places, raw_source
from megatron.errors import CheckpointError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.conversion.hf_models import VOCAB
from tests.conversion.raw_files import CASES, write_raw
from tests.support.doors import door

TOKENS = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
TOOL = "tools/ckpts/convert_raw_llama_weights_to_neox.py"


@pytest.mark.parametrize("files", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_transformers_does(tmp_path: Path, case: str, files: int) -> None:
    model, _ = write_raw(tmp_path / "raw", case, files, rows_of_embedding=files == 2)
    done = import_model(raw_source(tmp_path / "raw", None), tmp_path / "ours", layout=Layout(2))
    assert done.comparison.difference is not None
    assert done.comparison.of == "the raw files'"
    keys = yaml.safe_load((tmp_path / "ours" / "model.yml").read_text())
    assert keys["no_weight_tying"] is (case != "scaled, tied")
    args = NeoXArgs.from_dict(keys | {"model_parallel_size": 1})
    ours, _ = load_trained_model(args, build_parts(args, World()))
    with torch.no_grad():
        theirs = model(TOKENS).logits
        found = ours(TOKENS)[..., :VOCAB]
    assert (found - theirs).abs().max() < 1e-4
    assert theirs.abs().max() > 1


def test_a_wrong_order_of_rows_is_noticed(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", "first", 2)
    with (
        mock.patch.object(places, "_to_halves", lambda _, rows: rows),
        pytest.raises(CheckpointError, match="do not compute the same"),
    ):
        import_model(raw_source(tmp_path / "raw", None), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_the_command_as_users_of_gpt_neox_know_it(tmp_path: Path) -> None:
    write_raw(tmp_path / "llama" / "7B", "scaled, tied", 2)
    options = ("--input_dir", "llama", "--model_size", "7B", "--output_dir", "ours")
    done = door(TOOL, *options, "--num_output_shards", "2", "--pipeline_parallel", folder=tmp_path)
    assert done.status == 0, done.all
    assert "logits of 128 random tokens differ from the raw files' by" in done.out
    assert "the model's release has max_position_embeddings 131072" in done.out
    assert "the model's release has rotary_scaling_factor 32 " in done.out
    step = tmp_path / "ours" / "global_step0"
    assert (step / "layer_02-model_01-model_states.pt").exists()
    keys = yaml.safe_load((tmp_path / "ours" / "model.yml").read_text())
    assert (keys["model_parallel_size"], keys["pipe_parallel_size"]) == (2, 1)
    assert (keys["rotary_scaling"], keys["rotary_original_positions"]) == ("llama3", 8192)
    # A second time nothing is overwritten.
    again = door(TOOL, *options, folder=tmp_path)
    assert again.status != 0
    assert "Traceback" not in again.all


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "gap",
            r"expected: consolidated\.00\.pth and, of several ranks, all of them without a gap",
        ),
        ("no params", r"convert_hf_to_neox\.py"),
        ("experts", "moe"),
        ("a layer more", r"layers\.2\.attention\.wq\.weight is not there"),
        ("other files", "file 1 does not belong to file 0"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, wrong: str, message: str) -> None:
    _, params = write_raw(tmp_path, "grouped", 2)
    if wrong == "gap":
        (tmp_path / "consolidated.00.pth").rename(tmp_path / "consolidated.02.pth")
    elif wrong == "no params":
        (tmp_path / "params.json").unlink()
    elif wrong == "experts":
        (tmp_path / "params.json").write_text(json.dumps(params | {"moe": {"num_experts": 8}}))
    elif wrong == "a layer more":
        (tmp_path / "params.json").write_text(json.dumps(params | {"n_layers": 3}))
    else:
        torch.save({"norm.weight": torch.ones(32)}, tmp_path / "consolidated.01.pth")
    with pytest.raises(CheckpointError, match=message):
        import_model(raw_source(tmp_path, None), tmp_path / "ours")


def test_releases_are_known_by_their_numbers(tmp_path: Path) -> None:
    _, params = write_raw(tmp_path, "grouped", 1)
    for changes, positions in (
        ({"norm_eps": 1e-6}, 2048),
        ({"norm_eps": 1e-5}, 4096),
        ({"rope_theta": 1e6}, 16384),
        ({"rope_theta": 500000.0}, 8192),
        ({"sliding_window": 4096}, 32768),
        ({"max_seq_len": 100}, 100),
    ):
        (tmp_path / "params.json").write_text(json.dumps(params | changes))
        assert raw_source(tmp_path, None).keys["max_position_embeddings"] == positions


@pytest.mark.parametrize(
    ("params", "wishes", "message"),
    [
        ({"rope_theta": 10000.5}, {}, "rope_theta\n  found: 10000.5\n  expected: a whole number"),
        ({"dim": "32"}, {}, "dim\n  found: '32'\n  expected: a number"),
        (
            {},
            {"rope_scaling_factor": 8.0},
            "rope_scaling_factor\n  found: 8.0\n  expected: use_scaled",
        ),
    ],
)
def test_what_would_be_lost_is_refused(
    tmp_path: Path, params: dict[str, Any], wishes: dict[str, Any], message: str
) -> None:
    _, said = write_raw(tmp_path, "grouped", 1)
    (tmp_path / "params.json").write_text(json.dumps(said | params))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        raw_source(tmp_path, None, **wishes)


@pytest.mark.parametrize("rows_of_embedding", [False, True])
def test_a_head_that_is_in_no_file_is_the_embedding(
    tmp_path: Path, rows_of_embedding: bool
) -> None:
    write_raw(tmp_path / "raw", "scaled, tied", 2, rows_of_embedding=rows_of_embedding)
    without(tmp_path / "raw", "output.weight")
    done = import_model(raw_source(tmp_path / "raw", None), tmp_path / "ours")
    assert done.comparison.difference is not None
    assert not done.args.model.no_weight_tying
    without(tmp_path / "raw", "tok_embeddings.weight")
    with pytest.raises(CheckpointError, match=r"tok_embeddings\.weight is not there"):
        raw_source(tmp_path / "raw", None)


def without(folder: Path, name: str) -> None:
    """Take a tensor out of all files of ``folder``."""
    for path in folder.glob("*.pth"):
        tensors = torch.load(path)
        del tensors[name]
        torch.save(tensors, path)


def test_a_list_of_tokens_is_no_sentence_piece_model(tmp_path: Path) -> None:
    write_raw(tmp_path, "first", 1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    done = import_model(raw_source(tmp_path, None), tmp_path / "ours")
    assert "is a list of tokens for tiktoken, as Llama 3's: take the tokenizer.json" in done.text()
