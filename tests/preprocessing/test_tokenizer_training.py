"""Protects the training of tokenizers: the shipped one is what its documented command makes, what is held
out has no part, and no file is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron.errors import DataError
from megatron.preprocessing.tokenizer_training import parser, settings_from, train_tokenizer
from megatron.tokenizer import build_tokenizer
from tools.quickstart.select_rows import select_rows

QUICKSTART = Path(__file__).resolve().parents[2] / "tools" / "quickstart"


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plays") / "plays.jsonl"
    assert select_rows(QUICKSTART / "corpus.jsonl", path, "license", "public domain texts") == 20
    return path


def train(text: Path, output: Path, *more: str) -> dict[str, object]:
    arguments = ["--input", str(text), "--output", str(output), *more]
    train_tokenizer(settings_from(parser().parse_args(arguments)))
    content: dict[str, object] = json.loads(output.read_text())
    return content


def test_the_documented_command_makes_the_shipped_file(plays: Path, tmp_path: Path) -> None:
    output = tmp_path / "new folder" / "tokenizer.json"
    made = train(plays, output, "--split", "90,10,0", "--vocab-size", "2048")
    shipped = json.loads((QUICKSTART / "tokenizer.json").read_text())
    # The rest of the file depends on the version of the library.
    assert made["model"]["vocab"] == shipped["model"]["vocab"]
    assert made["model"]["merges"] == shipped["model"]["merges"]
    assert [path.name for path in output.parent.iterdir()] == ["tokenizer.json"]
    tokenizer = build_tokenizer("HFTokenizer", str(output))
    assert (tokenizer.vocab_size, tokenizer.eod) == (2048, 0)


def test_held_out_documents_have_no_part(tmp_path: Path) -> None:
    rows = [{"text": f"to be or not to be {i}"} for i in range(9)] + [{"text": ""}]
    text, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, held_out in ((text, "zebras zebras"), (other, "aardvarks aardvarks")):
        lines = [json.dumps(row) for row in [*rows, {"text": held_out}]]
        path.write_text("\n".join(lines))
    args = ("--vocab-size", "262")
    split = ("--split", "90,10,0")
    learnt = train(text, tmp_path / "a.json", *args, *split)
    assert learnt == train(other, tmp_path / "b.json", *args, *split)
    # The empty row is no document: of 10, the last is held out.
    assert "aa" not in "".join(learnt["model"]["vocab"])
    everything = train(text, tmp_path / "c.json", "--vocab-size", "271")
    assert "zebras" in " ".join(everything["model"]["vocab"])


def test_what_cannot_be_learnt(tmp_path: Path) -> None:
    text, output = tmp_path / "a.jsonl", tmp_path / "a.json"
    text.write_text('{"text": "abc abc"}\n')
    for size, message in (
        ("256", "expected 257 or more"),
        ("300", "only .* entries can be learnt"),
    ):
        with pytest.raises(DataError, match=message):
            train(text, output, "--vocab-size", size)
    text.write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="0 documents"):
        train(text, output, "--vocab-size", "300")
    assert not output.exists()


def test_only_a_tokenizer_is_replaced_and_only_when_told(tmp_path: Path) -> None:
    text, output = tmp_path / "a.jsonl", tmp_path / "a.json"
    text.write_text('{"text": "abc abc"}\n')
    first = train(text, output, "--vocab-size", "258")
    with pytest.raises(DataError, match="give --overwrite to replace it"):
        train(text, output, "--vocab-size", "259")
    assert json.loads(output.read_text()) == first
    assert train(text, output, "--vocab-size", "259", "--overwrite") != first
    for other in ('{"text": "abc"}\n', '{"model": 1}', "[]", "not JSON"):
        output.write_text(other)
        with pytest.raises(DataError, match="and is no tokenizer"):
            train(text, output, "--vocab-size", "258", "--overwrite")
        assert output.read_text() == other


def test_selected_rows_are_copied_as_they_are(tmp_path: Path) -> None:
    lines = [
        '{"text": "a\u2028", "meta": {"k": "x"}}\r\n',
        '{"text": "b", "meta": {"k": "y"}}\r\n',
        '{"text": "c",   "meta": {"k": "x"}}\r\n',
    ]
    (tmp_path / "in.jsonl").write_bytes("".join(lines).encode())
    assert select_rows(tmp_path / "in.jsonl", tmp_path / "d" / "out.jsonl", "k", "x") == 2
    assert (tmp_path / "d" / "out.jsonl").read_bytes() == (lines[0] + lines[2]).encode()
