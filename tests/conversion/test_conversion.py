"""Protects that models go from Hugging Face to a checkpoint and back unchanged, in files of any layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megatron.conversion import Layout, Wishes, export_checkpoint, import_folder
from megatron.conversion.comparison import logits_of
from megatron.errors import CheckpointError, ConfigError
from tests.conversion.hf_models import CASES, assert_same_tensors, save_model, tensors_of

ALONE = Wishes(with_tokenizer=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder as transformers saves it for each case, by its name."""
    root = tmp_path_factory.mktemp("models")
    return {case: save_model(case, root / case) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(folders: dict[str, Path], tmp_path: Path, case: str) -> None:
    """In files for four ranks, of which several hold the same key and value heads, in two stages."""
    done = import_folder(folders[case], tmp_path / "ours", layout=Layout(4, 2))
    assert done.comparison.difference is not None
    assert done.comparison.difference < 1e-4
    assert done.notes == ()
    back = export_checkpoint(tmp_path / "ours", tmp_path / "back", wishes=ALONE)
    assert back.family == done.family
    assert_same_tensors(folders[case], tmp_path / "back")


@pytest.mark.parametrize("layout", [Layout(), Layout(1, 1), Layout(2), Layout(4)], ids=str)
def test_files_of_every_layout(folders: dict[str, Path], tmp_path: Path, layout: Layout) -> None:
    folder = folders["llama 4/1"]
    import_folder(folder, tmp_path / "ours", layout=layout)
    names = {path.name for path in (tmp_path / "ours" / "global_step0").iterdir()}
    assert ("layer_00-model_00-model_states.pt" in names) == (layout.pipe > 0)
    ranks = {f"mp_rank_{rank:02d}_model_states.pt" for rank in range(layout.model)}
    assert {name for name in names if name.startswith("mp_rank")} == ranks
    export_checkpoint(tmp_path / "ours", tmp_path / "back", wishes=ALONE)
    assert_same_tensors(folder, tmp_path / "back")


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)], ids=str
)
def test_in_several_files_of_another_type(
    folders: dict[str, Path], tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    folder = folders["llama 8/4"]
    import_folder(folder, tmp_path / "ours")
    wishes = Wishes(with_tokenizer=False, dtype=name, max_shard_size=10_000)
    export_checkpoint(tmp_path / "ours", tmp_path / "back", wishes=wishes)
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert all(path.stat().st_size < 12_000 for path in files)
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_bytes())
    there, back = tensors_of(folder), tensors_of(tmp_path / "back")
    assert set(index["weight_map"]) == set(there) == set(back)
    assert all(torch.equal(back[name], there[name].to(dtype)) for name in there)
    # And in once more, which now is a run in that precision; or from fp32 at once.
    done = import_folder(tmp_path / "back", tmp_path / "again")
    assert done.args.model.precision == {"bf16": "bfloat16"}.get(name, name)
    import_folder(folder, tmp_path / "at once", dtype=name)
    for last in ("again", "at once"):
        export_checkpoint(tmp_path / last, tmp_path / f"last of {last}", wishes=ALONE)
        assert_same_tensors(tmp_path / "back", tmp_path / f"last of {last}")


def test_logits_are_compared(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders["llama with biases"]
    import_folder(folder, tmp_path / "ours")

    def a_little_wrong(*args: Any) -> torch.Tensor:
        return logits_of(*args) + 2e-4

    monkeypatch.setattr("megatron.conversion.comparison.logits_of", a_little_wrong)
    with pytest.raises(CheckpointError, match="do not compute the same"):
        export_checkpoint(tmp_path / "ours", tmp_path / "back", wishes=ALONE)
    with pytest.raises(CheckpointError, match="do not compute the same"):
        import_folder(folder, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    wishes = Wishes(with_tokenizer=False, tolerance=1e-3)
    export_checkpoint(tmp_path / "ours", tmp_path / "back", wishes=wishes)


def test_without_transformers_that_is_said(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = import_folder(folders["llama 8/4"], tmp_path / "ours")
    assert "not compared: transformers is not installed" in done.text()


def test_an_empty_folder_is_free(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    done = import_folder(next(iter(folders.values())), tmp_path / "ours")
    assert done.target.is_dir()


def test_what_is_there_stays(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "notes.txt").touch()
    with pytest.raises(CheckpointError, match="ours is not empty"):
        import_folder(folders["llama 8/4"], tmp_path / "ours")
    assert (tmp_path / "ours" / "notes.txt").exists()


def test_a_disk_that_refuses(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written\n  found: Not a directory"):
        import_folder(folders["llama 8/4"], tmp_path / "file" / "ours")
    import_folder(folders["llama 8/4"], tmp_path / "ours")
    with pytest.raises(CheckpointError, match="cannot be written\n  found: Not a directory"):
        export_checkpoint(tmp_path / "ours", tmp_path / "file" / "back")


def test_weights_in_another_type(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = change_config(folders["llama 8/4"], tmp_path / "theirs")
    tensors = {name: tensor.double() for name, tensor in tensors_of(folder).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="found: weights in float64"):
        import_folder(folder, tmp_path / "ours")
    assert import_folder(folder, tmp_path / "ours", dtype="fp32").args.model.precision == "fp32"


def test_ranks_that_cannot_share_the_model(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 ranks cannot share the attention heads"):
        import_folder(folders["llama 8/4"], tmp_path / "ours", layout=Layout(3))
    assert not (tmp_path / "ours").exists()


def change_config(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of ``folder`` whose config.json says something else."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "falcon"}, "the family 'falcon' is not in the table"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "found: 'dynamic'"),
        ({"hidden_act": "quick_gelu"}, "found: 'quick_gelu'"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is not there"),
        ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight is one too many"),
        ({"num_key_value_heads": 2}, r"k_proj.weight is \(16, 32\), expected \(8, 32\)"),
        ({"vocab_size": None}, "expected: a number of ids"),
    ],
    ids=str,
)
def test_a_config_that_we_have_no_words_for(
    folders: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = change_config(folders["llama 8/4"], tmp_path / "theirs", **changes)
    with pytest.raises(CheckpointError, match=message):
        import_folder(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_unknown_fields_are_said(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = change_config(folders["llama 8/4"], tmp_path / "theirs", attn_temperature=2.0)
    done = import_folder(folder, tmp_path / "ours")
    assert "config.json says attn_temperature: 2.0" in done.text()


def test_what_is_wrong_with_a_tokenizer_is_said(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = change_config(folders["llama 8/4"], tmp_path / "without")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    done = import_folder(folder, tmp_path / "ours")
    assert "no tokenizer lies in" in done.text()
    assert "set tokenizer_type" in done.run_file.read_text()
    folder = change_config(folders["llama 8/4"], tmp_path / "more", vocab_size=90)
    tensors = tensors_of(folder)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:90].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    done = import_folder(folder, tmp_path / "ours too")
    assert done.notes == ("the tokenizer has 100 ids, of which the model knows 90",)
    export_checkpoint(tmp_path / "ours too", tmp_path / "back")
    assert_same_tensors(folder, tmp_path / "back")


def test_names_and_leftovers_of_other_releases(folders: dict[str, Path], tmp_path: Path) -> None:
    """GPT-NeoX's head has had two names, and old files carry masks; tied ones repeat the embedding."""
    folder = folders["gpt_neox parallel untied"]
    tensors = tensors_of(folder)
    head = next(name for name in tensors if name in ("lm_head.weight", "embed_out.weight"))
    tensors["lm_head.weight"] = tensors.pop(head)
    tensors["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    tensors["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(1)
    theirs = change_config(folder, tmp_path / "theirs")
    save_file(tensors, theirs / "model.safetensors", metadata={"format": "pt"})
    import_folder(theirs, tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", wishes=ALONE)
    back = tensors_of(tmp_path / "back")
    assert torch.equal(back["embed_out.weight"], tensors["lm_head.weight"])
    tied = change_config(folders["llama 4/1"], tmp_path / "tied")
    tensors = tensors_of(tied)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tied / "model.safetensors", metadata={"format": "pt"})
    import_folder(tied, tmp_path / "ours again")


@pytest.mark.parametrize("how", ["cut", "missing", "old"])
def test_broken_folders(folders: dict[str, Path], tmp_path: Path, how: str) -> None:
    folder = change_config(folders["llama 8/4"], tmp_path / "theirs")
    file = folder / "model.safetensors"
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-100])
        message = "model.safetensors is damaged"
    else:
        file.unlink()
        message = "no file of weights"
    if how == "old":
        (folder / "pytorch_model.bin").touch()
        message = "found: pytorch_model.bin"
    with pytest.raises(CheckpointError, match=message):
        import_folder(folder, tmp_path / "ours")
