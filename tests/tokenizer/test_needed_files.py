"""Protects the list of files that a tokenizer reads: it reads those, all of them, and no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from megatron.errors import TokenizerError
from megatron.neox_arguments.tokenizer_files import NEEDED_FILES, files_read, unset_files
from megatron.tokenizer import TOKENIZER_TYPES, build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets"
JSON = ROOT / "tools" / "quickstart" / "tokenizer.json"
VOCAB, MERGES = ASSETS / "gpt2" / "vocab.json", ASSETS / "gpt2" / "merges.txt"

# Kind, the files in the folder, what the two keys say, and what is read.
CASES = [
    ("CharLevelTokenizer", [], "lost.json", "lost.txt", []),
    ("HFTokenizer", [JSON], "tokenizer.json", "lost.txt", ["tokenizer.json"]),
    ("GPT2BPETokenizer", [VOCAB, MERGES], "vocab.json", "merges.txt", ["vocab.json", "merges.txt"]),
    ("HFGPT2Tokenizer", [VOCAB, MERGES], "vocab.json", "merges.txt", ["vocab.json", "merges.txt"]),
    ("HFGPT2Tokenizer", [VOCAB, MERGES], "vocab.json", None, ["vocab.json", "merges.txt"]),
    ("HFGPT2Tokenizer", [VOCAB, MERGES], ".", None, ["vocab.json", "merges.txt"]),
]


@pytest.mark.parametrize(("kind", "files", "vocab", "merges", "read"), CASES)
def test_each_of_them_is_read_and_no_other(
    kind: str,
    files: list[Path],
    vocab: str,
    merges: str | None,
    read: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in files:
        shutil.copy(path, tmp_path)
    found = files_read(kind, vocab, merges)
    assert [str(path) for path in found.values()] == read
    build_tokenizer(kind, vocab, merges)
    for key, path in found.items():
        content = path.read_bytes()
        path.unlink()
        assert files_read(kind, vocab, merges)[key] == path
        with pytest.raises(TokenizerError, match=f"{path}: cannot be read"):
            build_tokenizer(kind, vocab, merges)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", TOKENIZER_TYPES)
def test_each_key_that_is_needed_is_asked_for(kind: str) -> None:
    given = {"vocab_file": "vocab", "merge_file": "merges"}
    assert unset_files(kind, **given) == []
    for key, what in NEEDED_FILES[kind].items():
        (text,) = unset_files(kind, **{**given, key: ""})
        assert f"{kind} needs {key}, which is not set: name its {what}" in text
        with pytest.raises(TokenizerError) as raised:
            build_tokenizer(kind, **{**given, key: None})
        assert str(raised.value) == text


def test_the_name_of_an_encoding_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert files_read("TiktokenTokenizer", "cl100k_base") == {}
    elsewhere = Path("folder/cl100k_base.tiktoken")
    assert files_read("TiktokenTokenizer", str(elsewhere)) == {"vocab_file": elsewhere}
    Path("cl100k_base").write_text(json.dumps("a file of that name comes first"))
    assert files_read("TiktokenTokenizer", "cl100k_base") == {"vocab_file": Path("cl100k_base")}
