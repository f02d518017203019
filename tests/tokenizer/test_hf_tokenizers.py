"""HFTokenizer: the 20B tokenizer's ids, special tokens, and what a tokenizer.json may lack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from bpe_reference import SlowBPE
from tokenizers import models, pre_tokenizers, processors

from megatron.errors import TokenizerError
from megatron.tokenizer import Tokenizer, build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
TWENTY_B = ROOT / "tests" / "assets" / "neox20b" / "20B_tokenizer.json"


@pytest.fixture(scope="module")
def neox() -> Tokenizer:
    return build_tokenizer("HFTokenizer", str(TWENTY_B))


def save(path: Path, vocab: dict[str, int]) -> tokenizers.Tokenizer:
    """A tokenizer of whole words, written to ``path``."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=next(iter(vocab))))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    return tokenizer


def test_sizes_and_special_ids(neox: Tokenizer) -> None:
    assert (neox.name, neox.vocab_size, neox.eod, neox.pad) == ("HFTokenizer", 50277, 0, 1)
    assert neox.tokenize("Hello world") == [12092, 1533]


def test_real_and_awkward_text_equals_an_independent_implementation(neox: Tokenizer) -> None:
    content = json.loads(TWENTY_B.read_text(encoding="utf-8"))
    merges = [
        tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in content["model"]["merges"]
    ]
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    slow = SlowBPE(content["model"]["vocab"], merges, added, nfc=True)
    with open(ROOT / "tools/quickstart/corpus.jsonl", encoding="utf-8", newline="\n") as rows:
        texts = [json.loads(next(rows))["text"][:20_000] for _ in range(8)]
    texts += ["a" + " " * n + "b" for n in range(60)]
    texts += [
        "e\u0301 caf\u00e9 \u1100\u1161",
        "x<|endoftext|>y<|padding|>",
        "\t\n \r\n",
        "🦙 \u2028",
    ]
    for text in texts:
        assert neox.tokenize(text) == slow(text), text[:80]


def test_end_of_text_round_trip(neox: Tokenizer) -> None:
    ids = neox.tokenize("Hello world<|endoftext|>  Hello")
    assert ids[2] == 0
    assert neox.detokenize(ids) == "Hello world<|endoftext|>  Hello"


def test_normalised_text_comes_back_composed(neox: Tokenizer) -> None:
    assert neox.detokenize(neox.tokenize("e\u0301")) == "\u00e9"


def test_limits_in_the_file_neither_cut_nor_pad(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    engine = save(path, {"</s>": 0, "a": 1, "b": 2})
    engine.enable_truncation(2)
    engine.enable_padding(pad_id=2, length=8)
    engine.save(str(path))
    assert build_tokenizer("HFTokenizer", str(path)).tokenize("a b a b") == [1, 2, 1, 2]


def test_what_the_post_processor_adds_is_added(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    engine = save(path, {"</s>": 0, "a": 1, "<s>": 2})
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 2)]
    )
    engine.save(str(path))
    assert build_tokenizer("HFTokenizer", str(path)).tokenize("a") == [2, 1]


def test_end_of_document_falls_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, {"a": 0, "</s>": 1, "<pad>": 2})
    tokenizer = build_tokenizer("HFTokenizer", str(path))
    assert (tokenizer.eod, tokenizer.pad) == (1, 2)


def test_no_end_of_document_is_an_error_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, {"a": 0, "b": 1})
    tokenizer = build_tokenizer("HFTokenizer", str(path))
    assert tokenizer.pad is None
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no end-of-document token"):
        _ = tokenizer.eod


def test_every_id_is_below_the_size_of_a_vocabulary_with_holes(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, {"a": 0, "<|endoftext|>": 9})
    assert build_tokenizer("HFTokenizer", str(path)).vocab_size == 10


@pytest.mark.parametrize("content", ['{"a": 0}', '{"model": 3, "a": 0}'])
def test_a_plain_vocabulary_is_told_from_a_tokenizer(tmp_path: Path, content: str) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(content)
    with pytest.raises(TokenizerError, match="goes with GPT2BPETokenizer"):
        build_tokenizer("HFTokenizer", str(path))


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": 3}}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be used as a tokenizer"):
        build_tokenizer("HFTokenizer", str(path))


def test_the_quickstart_tokenizer() -> None:
    tokenizer = build_tokenizer("HFTokenizer", str(ROOT / "tools/quickstart/tokenizer.json"))
    assert (tokenizer.vocab_size, tokenizer.eod) == (2048, 0)
    text = "HAMLET.\nTo be, or not to be: 🦙 <|endoftext|>"
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
