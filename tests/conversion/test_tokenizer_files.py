"""Tokenizers on their way to Hugging Face and back give the same ids there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import transformers

from megatron.conversion.tokenizer_files import (
    TokenIds,
    copy_tokenizer,
    token_ids,
    tokenizer_of,
    write_tokenizer,
)
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import TokenizerArgs

ASSETS = Path(__file__).resolve().parents[1] / "assets"
GPT2 = {
    "vocab_file": str(ASSETS / "gpt2" / "vocab.json"),
    "merge_file": str(ASSETS / "gpt2" / "merges.txt"),
}
NEOX = {"vocab_file": str(ASSETS / "neox20b" / "20B_tokenizer.json")}
TEXT = "Hello world,  it's 1999: naïve\n\ttabs"


@pytest.mark.parametrize(
    ("args", "ids", "files"),
    [
        (
            TokenizerArgs("HFTokenizer", **NEOX),
            TokenIds(0, 0, 1),
            {"tokenizer.json"},
        ),
        (
            TokenizerArgs("GPT2BPETokenizer", **GPT2),
            TokenIds(50256, 50256, None),
            {"vocab.json", "merges.txt"},
        ),
        (
            TokenizerArgs("HFGPT2Tokenizer", **GPT2),
            TokenIds(50256, 50256, 50257),
            {"vocab.json", "merges.txt"},
        ),
        (
            TokenizerArgs("HFGPT2Tokenizer", vocab_file=str(ASSETS / "gpt2")),
            TokenIds(50256, 50256, 50257),
            {"vocab.json", "merges.txt"},
        ),
    ],
    ids=lambda value: value.tokenizer_type if isinstance(value, TokenizerArgs) else "",
)
def test_transformers_reads_the_same_ids(
    tmp_path: Path, args: TokenizerArgs, ids: TokenIds, files: set[str]
) -> None:
    ours = tokenizer_of(args)
    assert write_tokenizer(args, ours, tmp_path) == ids
    assert {path.name for path in tmp_path.iterdir()} == files | {
        "tokenizer_config.json",
        "generation_config.json",
    }
    assert json.loads((tmp_path / "generation_config.json").read_bytes()) == ids.as_dict()
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neox"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT).input_ids == ours.tokenize(TEXT)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ids.eos_token_id, ids.pad_token_id)
    keys = copy_tokenizer([tmp_path], tmp_path / "copy")
    copied = {
        key: value if key == "tokenizer_type" else str(tmp_path / "copy" / value)
        for key, value in keys.items()
    }
    assert tokenizer_of(TokenizerArgs(**copied)).tokenize(TEXT) == ours.tokenize(TEXT)


def test_a_folder_of_hugging_face_travels_as_it_is(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    shutil.copy(NEOX["vocab_file"], source / "tokenizer.json")
    told = {
        "tokenizer_config.json": '{"eos_token": "x"}',
        "chat_template.jinja": "{{ messages }}",
        "generation_config.json": '{"eos_token_id": [0, 3], "temperature": 0.5}',
    }
    for name, text in told.items():
        (source / name).write_text(text)
    (source / "data.bin").touch()
    args = TokenizerArgs("HFTokenizer", str(source / "tokenizer.json"))
    ids = write_tokenizer(args, tokenizer_of(args), target)
    assert ids == TokenIds(None, [0, 3], None)
    assert {path.name for path in target.iterdir()} == {*told, "tokenizer.json"}
    assert {name: (target / name).read_text() for name in told} == told


def test_ids_that_config_json_alone_names_come_back(tmp_path: Path) -> None:
    """Folders of old releases have no generation_config.json."""
    source, ours, back = tmp_path / "source", tmp_path / "ours", tmp_path / "back"
    source.mkdir()
    back.mkdir()
    shutil.copy(NEOX["vocab_file"], source / "tokenizer.json")
    (source / "tokenizer_config.json").write_text("{}")
    (source / "config.json").write_text('{"bos_token_id": 5, "eos_token_id": [0, 3]}')
    copy_tokenizer([source], ours)
    args = TokenizerArgs("HFTokenizer", str(ours / "tokenizer.json"))
    assert write_tokenizer(args, tokenizer_of(args), back) == TokenIds(5, [0, 3], None)


def test_no_ids_are_made_up(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    keys = copy_tokenizer([tmp_path], tmp_path / "copy")
    assert keys == {"tokenizer_type": "SPMTokenizer", "vocab_file": "tokenizer.model"}
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["tokenizer.model"]


def test_files_beside_a_vocabulary_that_are_nobodys(tmp_path: Path) -> None:
    """A folder of data may hold other vocabularies: without tokenizer_config.json they stay there."""
    source, target = tmp_path / "data", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    shutil.copy(NEOX["vocab_file"], source / "mine.json")
    for name in ("vocab.json", "merges.txt", "special_tokens_map.json"):
        (source / name).touch()
    args = TokenizerArgs("HFTokenizer", str(source / "mine.json"))
    write_tokenizer(args, tokenizer_of(args), target)
    assert {path.name for path in target.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }


def test_ids_of_a_tokenizer_without_files() -> None:
    args = TokenizerArgs("CharLevelTokenizer")
    assert token_ids(args, tokenizer_of(args)) == TokenIds(0, 0, 1)


def test_what_transformers_does_not_have(tmp_path: Path) -> None:
    args = TokenizerArgs("CharLevelTokenizer")
    with pytest.raises(CheckpointError, match="no CharLevelTokenizer"):
        write_tokenizer(args, tokenizer_of(args), tmp_path)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert copy_tokenizer([tmp_path], tmp_path / "copy") == {}
    assert not (tmp_path / "copy").exists()
