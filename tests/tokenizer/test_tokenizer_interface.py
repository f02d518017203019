"""What all tokenizers share: batches, packed arrays, round trips, errors, fingerprints, padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from megatron.errors import TokenizerError
from megatron.neox_arguments.registry import FIELDS
from megatron.tokenizer import TOKENIZER_TYPES, build_tokenizer, long_texts, padded_vocab_size

ASSETS = Path(__file__).resolve().parents[1] / "assets"
GPT2 = (str(ASSETS / "gpt2/vocab.json"), str(ASSETS / "gpt2/merges.txt"))
CHARACTERS = build_tokenizer("CharLevelTokenizer")
BPE = build_tokenizer("GPT2BPETokenizer", *GPT2)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.lists(texts, max_size=5))
@settings(max_examples=60, deadline=None)
def test_batches_round_trip_and_packing(batch: list[str]) -> None:
    for tokenizer in (CHARACTERS, BPE):
        ids = [tokenizer.tokenize(text) for text in batch]
        assert tokenizer.tokenize_batch(batch) == ids
        assert [tokenizer.detokenize(i) for i in ids] == batch
        packed = tokenizer.tokenize_packed(batch)
        assert packed.lengths.tolist() == [len(i) for i in ids]
        assert packed.tokens.tolist() == [token for i in ids for token in i]
        assert packed.tokens.dtype == packed.lengths.dtype == np.int64


def test_character_level_is_utf8_padded_to_512() -> None:
    assert (CHARACTERS.vocab_size, CHARACTERS.eod, CHARACTERS.pad) == (512, 0, 1)
    assert CHARACTERS.tokenize("aé€") == [97, 195, 169, 226, 130, 172]
    assert CHARACTERS.detokenize(np.array([97, 511, 98], dtype=np.uint16)) == "a\ufffdb"
    assert CHARACTERS.detokenize([226, 130]) == "\ufffd"


@pytest.mark.parametrize("tokenizer", [CHARACTERS, BPE])
def test_ids_that_are_not_in_the_vocabulary(tokenizer) -> None:
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(TokenizerError, match=f"token id {wrong} is not in the vocabulary"):
            tokenizer.detokenize([0, wrong])


@pytest.mark.parametrize("tokenizer", [CHARACTERS, BPE])
def test_a_lone_surrogate_is_named(tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"'\\ud800' at character 2"):
        tokenizer.tokenize("ab\ud800")


def test_fingerprints_tell_kinds_and_files_apart(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((ASSETS / "gpt2" / name).read_bytes())
    copy = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    same = build_tokenizer("GPT2BPETokenizer", *copy).fingerprint()
    other_kind = build_tokenizer("HFGPT2Tokenizer", *copy).fingerprint()
    merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "merges.txt").write_text("\n".join(merges[:-2]) + "\n", encoding="utf-8")
    other_file = build_tokenizer("GPT2BPETokenizer", *copy).fingerprint()
    assert same == BPE.fingerprint()
    assert len({same, other_kind, other_file, CHARACTERS.fingerprint()}) == 4


def test_types() -> None:
    assert set(TOKENIZER_TYPES) == {
        "GPT2BPETokenizer", "HFTokenizer", "HFGPT2Tokenizer", "CharLevelTokenizer", "SPMTokenizer",
        "TiktokenTokenizer",
    }  # fmt: skip
    of_the_configuration = get_args(FIELDS["tokenizer_type"].annotation)
    assert set(of_the_configuration) == set(TOKENIZER_TYPES)
    assert build_tokenizer("charleveltokenizer").name == "CharLevelTokenizer"
    with pytest.raises(TokenizerError, match=r"unknown \(did you mean GPT2BPETokenizer\?\)"):
        build_tokenizer("GPT2BPETokeniser")
    for kind in ("SPMTokenizer", "TiktokenTokenizer"):
        with pytest.raises(TokenizerError, match=f"{kind} needs vocab_file, which is not set"):
            build_tokenizer(kind)


@pytest.mark.parametrize(
    ("size", "divisible_by", "parallel", "padded"),
    [(50257, 128, 1, 50304), (50257, 128, 8, 51200), (50304, 128, 1, 50304), (1, 1, 1, 1)],
)
def test_padded_size(size: int, divisible_by: int, parallel: int, padded: int) -> None:
    assert padded_vocab_size(size, divisible_by, parallel) == padded
    with pytest.raises(ValueError, match="divisible_by is 0"):
        padded_vocab_size(size, 0, parallel)


def test_long_texts_are_cut_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = ASSETS.parents[1] / "tools/quickstart/corpus.jsonl"
    with open(corpus, encoding="utf-8", newline="\n") as rows:
        documents = [json.loads(next(rows))["text"][:30_000] for _ in range(8)]
    awkward = (
        "a  b\n\n c1 's d <|endoftext|>  e\u0301 \u0301f  \t g_ h\u00a0 i\u2028 j    \x1c k " * 40
    )
    texts = [*documents, "", awkward, awkward[::-1], "x" * 500, " " * 500]
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 3)
    monkeypatch.setattr(long_texts, "GROUP_CHARACTERS", 50)
    neox = build_tokenizer("HFTokenizer", str(ASSETS / "neox20b/20B_tokenizer.json"))
    for tokenizer in (BPE, build_tokenizer("HFGPT2Tokenizer", *GPT2), neox):
        packed = tokenizer.tokenize_packed(texts)
        ids = tokenizer.tokenize_batch(texts)
        assert packed.lengths.tolist() == [len(i) for i in ids]
        assert packed.tokens.tolist() == [token for i in ids for token in i]
    assert "".join(long_texts.pieces(awkward)) == awkward
    assert len(list(long_texts.pieces(awkward))) > 100


def byte_level() -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return engine


def test_which_tokenizers_may_be_cut() -> None:
    assert long_texts.may_be_cut(byte_level())
    composing = byte_level()
    composing.normalizer = normalizers.NFC()
    assert long_texts.may_be_cut(composing)
    others = [byte_level() for _ in range(6)]
    others[0].pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    others[1].pre_tokenizer = pre_tokenizers.Whitespace()
    others[2].normalizer = normalizers.Strip()
    others[3].add_tokens(["two words"])
    others[4].add_tokens([tokenizers.AddedToken("x", lstrip=True)])
    others[5].pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert not any(long_texts.may_be_cut(engine) for engine in others)
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert not long_texts.may_be_cut(words)
