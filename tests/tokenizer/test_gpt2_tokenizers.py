"""GPT-2's two tokenizers: published ids, an independent implementation, special tokens, bad files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bpe_reference import SlowBPE

from megatron.errors import TokenizerError
from megatron.tokenizer import Tokenizer, build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets"
VOCAB, MERGES = str(ASSETS / "gpt2/vocab.json"), str(ASSETS / "gpt2/merges.txt")
VECTORS = ASSETS / "tokenizer_vectors"


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return build_tokenizer("GPT2BPETokenizer", VOCAB, MERGES)


@pytest.fixture(scope="module")
def hf_gpt2() -> Tokenizer:
    return build_tokenizer("HFGPT2Tokenizer", str(ASSETS / "gpt2"))


def published_vectors() -> list[tuple[str, list[int]]]:
    with open(VECTORS / "ggml-vocab-gpt-2.gguf.inp", encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    lines = (VECTORS / "ggml-vocab-gpt-2.gguf.out").read_text().splitlines()
    return [(t, [int(i) for i in line.split()]) for t, line in zip(texts, lines, strict=False)]


def documents(count: int) -> list[str]:
    with open(ROOT / "tools/quickstart/corpus.jsonl", encoding="utf-8", newline="\n") as rows:
        return [json.loads(next(rows))["text"][:20_000] for _ in range(count)]


def test_published_vectors(gpt2: Tokenizer, hf_gpt2: Tokenizer) -> None:
    vectors = published_vectors()
    assert len(vectors) >= 46
    for text, ids in vectors:
        assert gpt2.tokenize(text) == ids, text
        assert hf_gpt2.tokenize(text) == ids, text
        assert gpt2.detokenize(ids) == text


def test_real_text_equals_an_independent_implementation(gpt2: Tokenizer) -> None:
    merges = [
        (line.split(" ")[0], line.split(" ")[1])
        for line in Path(MERGES).read_text(encoding="utf-8").split("\n")[1:-1]
    ]
    slow = SlowBPE(json.loads(Path(VOCAB).read_text(encoding="utf-8")), merges)
    for text in documents(8):
        assert gpt2.tokenize(text) == slow(text)


def test_sizes_and_special_ids(gpt2: Tokenizer, hf_gpt2: Tokenizer) -> None:
    assert (gpt2.name, gpt2.vocab_size, gpt2.eod, gpt2.pad) == (
        "GPT2BPETokenizer", 50257, 50256, None
    )  # fmt: skip
    assert (hf_gpt2.name, hf_gpt2.vocab_size, hf_gpt2.eod, hf_gpt2.pad) == (
        "HFGPT2Tokenizer", 50258, 50256, 50257
    )  # fmt: skip


def test_end_of_text_in_a_document(gpt2: Tokenizer, hf_gpt2: Tokenizer) -> None:
    text = "Hello world<|endoftext|>"
    # As in GPT-NeoX: text to the one, the special token to the other.
    assert gpt2.tokenize(text) == [15496, 995, 27, 91, 437, 1659, 5239, 91, 29]
    assert hf_gpt2.tokenize(text) == [15496, 995, 50256]
    for tokenizer in (gpt2, hf_gpt2):
        assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
        assert tokenizer.detokenize([15496, 50256]) == "Hello<|endoftext|>"


def test_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    vocab = json.loads(Path(VOCAB).read_text(encoding="utf-8"))
    vocab["Ġremoved"] = vocab.pop("Ġthe")
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(TokenizerError, match=r"merges\.txt, line \d+: 'Ġthe' is not in .*vocab"):
        build_tokenizer("GPT2BPETokenizer", str(tmp_path / "vocab.json"), MERGES)


def test_a_vocabulary_without_all_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text('{"a": 0, "<|endoftext|>": 1}')
    with pytest.raises(TokenizerError, match="255 of the 256 byte pieces are missing"):
        build_tokenizer("GPT2BPETokenizer", str(path), MERGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "holds a JSON list"),
        ('{"a": "b"}', "the entry 'a' is 'b', not an id"),
        ('{"a": 0, "b": 0}', "two tokens share one id"),
    ],
)
def test_broken_vocabularies(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        build_tokenizer("GPT2BPETokenizer", str(path), MERGES)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#version: 0.2\n\n", "holds no merges"),
        (b"#version: 0.2\nh e l\n", r"line 2: 'h e l'"),
        (b"h \n", r"line 1: 'h '"),
        (b"\xff\n", "is not UTF-8"),
    ],
)
def test_broken_merges(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "merges.txt"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        build_tokenizer("GPT2BPETokenizer", VOCAB, str(path))


def test_a_merge_that_looks_like_a_comment_counts(tmp_path: Path) -> None:
    path = tmp_path / "merges.txt"
    path.write_bytes(b"#version: 0.2\r\n# #\r\n## ##\r\n")
    assert build_tokenizer("GPT2BPETokenizer", VOCAB, str(path)).tokenize("####") == [4242]


def test_missing_files_name_the_key_and_the_path(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="GPT2BPETokenizer needs merge_file"):
        build_tokenizer("GPT2BPETokenizer", VOCAB)
    with pytest.raises(TokenizerError, match=r"needs vocab_file.*nothing is downloaded"):
        build_tokenizer("HFGPT2Tokenizer")
    with pytest.raises(TokenizerError, match=r"none\.json: cannot be read: No such file"):
        build_tokenizer("GPT2BPETokenizer", str(tmp_path / "none.json"), MERGES)
    shutil.copy(VOCAB, tmp_path / "vocab.json")
    with pytest.raises(TokenizerError, match=r"merges\.txt: cannot be read"):
        build_tokenizer("HFGPT2Tokenizer", str(tmp_path))
