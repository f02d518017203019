"""Whole models out of checkpoints of every form, and what a checkpoint says it is of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from megatron.checkpointing.reshard import reshard
from megatron.conversion import Wishes, export_checkpoint, import_folder
from megatron.conversion.expressible import family_of
from megatron.errors import CheckpointError, TokenizerError
from megatron.neox_arguments import NeoXArgs
from tests.conversion.hf_models import VOCAB, assert_same_tensors, save_model

ALONE = Wishes(with_tokenizer=False)
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """``theirs`` and, made from it, ``ours``."""
    save_model("gpt_neox sequential tied", tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    return tmp_path


def as_gpt_neox_writes(root: Path) -> Path:
    """A copy of ``ours`` without what GPT-NeoX does not write."""
    shutil.copytree(root / "ours", root / "foreign")
    step = root / "foreign" / "global_step0"
    (step / "manifest.json").unlink()
    (step / "configs" / "effective_config.json").unlink()
    return step


def test_a_checkpoint_of_gpt_neox(imported: Path) -> None:
    as_gpt_neox_writes(imported)
    export_checkpoint(imported / "foreign", imported / "back", wishes=ALONE)
    assert_same_tensors(imported / "theirs", imported / "back")


def test_one_without_a_configuration(imported: Path) -> None:
    step = as_gpt_neox_writes(imported)
    config = (step / "configs" / "model.yml").rename(imported / "model.yml")
    with pytest.raises(CheckpointError, match="--config_file"):
        export_checkpoint(step, imported / "back", wishes=ALONE)
    export_checkpoint(step, imported / "back", config_files=[config], wishes=ALONE)
    assert_same_tensors(imported / "theirs", imported / "back")


def test_the_layout_free_form(imported: Path) -> None:
    reshard(imported / "ours", imported / "whole")
    export_checkpoint(imported / "whole", imported / "back")
    assert_same_tensors(imported / "theirs", imported / "back")


def test_ids_are_named_without_the_tokenizers_files(imported: Path) -> None:
    export_checkpoint(imported / "ours", imported / "back", wishes=ALONE)
    config = json.loads((imported / "back" / "config.json").read_bytes())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert not (imported / "back" / "tokenizer.json").exists()


def test_padding_stays_here(imported: Path) -> None:
    """Rows behind the tokenizer's ids are nobody's."""
    manifest = imported / "ours" / "global_step0" / "manifest.json"
    state = json.loads(manifest.read_bytes())
    assert state["state"]["vocab_size"] == VOCAB
    state["state"]["vocab_size"] = 90
    manifest.write_text(json.dumps(state))
    done = export_checkpoint(imported / "ours", imported / "back", wishes=ALONE)
    assert done.vocab_size == 90
    assert json.loads((imported / "back" / "config.json").read_bytes())["vocab_size"] == 90


def test_the_weights_of_one_whose_tokenizer_is_gone(imported: Path) -> None:
    shutil.rmtree(imported / "ours" / "tokenizer")
    with pytest.raises(TokenizerError, match=r"or: convert the weights alone, with --no_save"):
        export_checkpoint(imported / "ours", imported / "back")
    export_checkpoint(imported / "ours", imported / "back", wishes=ALONE)
    assert_same_tensors(imported / "theirs", imported / "back")


def test_one_without_an_embedding(imported: Path) -> None:
    step = as_gpt_neox_writes(imported)
    shutil.rmtree(imported / "ours" / "tokenizer")  # which would say how many rows there are
    (file,) = step.glob("mp_rank_*_model_states.pt")
    content = torch.load(file, weights_only=False)
    content["module"] = {k: v for k, v in content["module"].items() if "embeddings" not in k}
    torch.save(content, file)
    with pytest.raises(CheckpointError, match="holds no embedding: its files are not all there"):
        export_checkpoint(step, imported / "back", wishes=ALONE)


def test_a_configuration_of_another_model(imported: Path) -> None:
    values = yaml.safe_load((imported / "ours" / "model.yml").read_text())
    values |= {"num_layers": 3, "use_bias_in_attn_linear": False}
    (imported / "other.yml").write_text(yaml.safe_dump(values))
    with pytest.raises(CheckpointError, match=r"sequential\.4\.\S+ is not there") as caught:
        export_checkpoint(
            imported / "ours",
            imported / "back",
            config_files=[imported / "other.yml"],
            wishes=ALONE,
        )
    assert len(str(caught.value).splitlines()) <= 10
    assert not (imported / "back").exists()


@pytest.mark.parametrize("more", [{"use_mup": True}, {"soft_prompt_tuning": {"num_tokens": 8}}])
def test_what_changes_a_model_from_outside_its_section(
    imported: Path, more: dict[str, object]
) -> None:
    config = imported / "ours" / "global_step0" / "configs" / "effective_config.json"
    manifest = imported / "ours" / "global_step0" / "manifest.json"
    values = json.loads(config.read_bytes()) | more
    config.write_text(json.dumps(values))
    content = json.loads(manifest.read_bytes())
    content["disks"][0]["configs/effective_config.json"] = config.stat().st_size
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=next(iter(more))):
        export_checkpoint(imported / "ours", imported / "back", wishes=ALONE)


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        export_checkpoint(tmp_path / "empty", tmp_path / "back")


@pytest.mark.parametrize(
    ("files", "family"),
    [
        (["pythia/1B.yml"], "gpt_neox"),
        (["20B.yml"], "gpt_neox"),
        (["125M.yml"], "gpt_neox"),
        (["llama/7B.yml"], "llama"),
        (["llama2/70B.yml"], "llama"),
        (["llama3/8B.yml"], "llama"),
        (["llama2/codellama_34B.yml"], "llama"),
        (["mistral/7B.yml"], "llama"),  # without windows it is one
    ],
    ids=str,
)
def test_shipped_configurations_have_a_family(files: list[str], family: str) -> None:
    args = NeoXArgs.from_ymls([CONFIGS / name for name in files])
    assert family_of(args.model).name == family
