"""SentencePiece models, trained here on a few lines."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron.errors import TokenizerError
from megatron.tokenizer import build_tokenizer

spm = pytest.importorskip("sentencepiece")

LINES = ["the cat sat on the mat", "a dog and a cat", "日本語 and é", "the dog sat"] * 8


def train(path: Path, **options: Any) -> str:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    path.write_bytes(model.getvalue())
    return str(path)


def test_ids_are_the_librarys_and_special_tokens_are_written(tmp_path: Path) -> None:
    path = train(tmp_path / "tokenizer.model", pad_id=3)
    tokenizer = build_tokenizer("SPMTokenizer", path)
    reference = spm.SentencePieceProcessor(model_file=path)
    texts = ["the cat", "", "日本 é ☃", "</s> is text", "a " * 5000]
    assert tokenizer.tokenize_batch(texts) == [reference.encode(text) for text in texts]
    assert tokenizer.tokenize_packed(texts).lengths.tolist() == [
        len(reference.encode(text)) for text in texts
    ]
    assert (tokenizer.eod, tokenizer.pad) == (reference.eos_id(), 3)
    assert tokenizer.vocab_size == reference.get_piece_size()
    ids = [*tokenizer.tokenize("the cat ☃"), tokenizer.eod, *tokenizer.tokenize("a dog")]
    assert tokenizer.detokenize(ids) == "the cat ☃</s>a dog"
    assert tokenizer.engine == "the sentencepiece library"


def test_end_of_document(tmp_path: Path) -> None:
    own = train(tmp_path / "own.model", user_defined_symbols=["<|endoftext|>"])
    tokenizer = build_tokenizer("SPMTokenizer", own)
    assert tokenizer.detokenize([tokenizer.eod]) == "<|endoftext|>"
    assert tokenizer.pad is None
    none = build_tokenizer("SPMTokenizer", train(tmp_path / "none.model", eos_id=-1))
    with pytest.raises(TokenizerError, match=r"none\.model: no end-of-document token"):
        _ = none.eod
    assert none.fingerprint() != tokenizer.fingerprint()


def test_files_that_are_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.model").write_bytes(b"no model")
    with pytest.raises(TokenizerError, match=r"a\.model: cannot be used as a SentencePiece model"):
        build_tokenizer("SPMTokenizer", str(tmp_path / "a.model"))
    with pytest.raises(TokenizerError, match=r"b\.model: cannot be read"):
        build_tokenizer("SPMTokenizer", str(tmp_path / "b.model"))
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(TokenizerError, match="pip install sentencepiece"):
        build_tokenizer("SPMTokenizer", str(tmp_path / "a.model"))
