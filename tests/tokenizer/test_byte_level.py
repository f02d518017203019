"""The fast engine gives the ids of the `tokenizers` library, or is not used."""

from __future__ import annotations

import functools
import json
import sys
import types
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from megatron.tokenizer import Tokenizer as OurTokenizer
from megatron.tokenizer import build_tokenizer, byte_level
from megatron.tokenizer.byte_level import FastBytePairs, NotFast, fast_engine

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets"
KINDS = {
    "gpt2": ("GPT2BPETokenizer", str(ASSETS / "gpt2/vocab.json"), str(ASSETS / "gpt2/merges.txt")),
    "hf_gpt2": ("HFGPT2Tokenizer", str(ASSETS / "gpt2"), None),
    "20b": ("HFTokenizer", str(ASSETS / "neox20b/20B_tokenizer.json"), None),
    "quickstart": ("HFTokenizer", str(ROOT / "tools/quickstart/tokenizer.json"), None),
}


@functools.cache
def tokenizer(kind: str) -> OurTokenizer:
    built = build_tokenizer(*KINDS[kind])
    assert built.engine == "tiktoken's engine"
    return built


def flat(by: OurTokenizer, texts: list[str]) -> list[int]:
    """The library's ids of all texts."""
    return [index for ids in by.tokenize_batch(texts) for index in ids]


def assert_same_ids(kind: str, texts: list[str]) -> None:
    """The packed ids (fast engine) are the listed ones (the library), for each text."""
    both = tokenizer(kind)
    tokens, lengths = both.tokenize_packed(texts)
    expected = both.tokenize_batch(texts)
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert tokens.tolist() == [i for ids in expected for i in ids]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["gpt2", "20b", pytest.param("hf_gpt2", marks=SLOW), "quickstart"])
def test_the_corpus(kind: str, every: int) -> None:
    with open(ROOT / "tools/quickstart/corpus.jsonl", encoding="utf-8", newline="\n") as rows:
        assert_same_ids(kind, [json.loads(row)["text"] for row in rows][::every])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "20b"])
def test_every_character(kind: str) -> None:
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    blocks = [points[i : i + 256] for i in range(0, len(points), 256)]
    assert_same_ids(kind, ["".join(f"a{chr(p)} {chr(p)}1{chr(p)}!" for p in b) for b in blocks])


# Spaces, marks, and pieces of the special tokens often; everything else sometimes.
awkward = st.text() | st.lists(
    st.sampled_from(
        [
            *(" ", "  ", " " * 23, " " * 24, " " * 25, "\n", "\t", "\u3000", "\u0301", "\u0338"),
            *("é", ">", "a", "the", "'s", "'", "9", "<|endoftext|>", "<|padding|>", "<|", "|>"),
            *("\u1100", "\u1161"),
        ]
    )
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=awkward)
def test_any_text(kind: str, text: str) -> None:
    assert_same_ids(kind, [text])


def test_long_texts_with_and_without_places_to_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("gpt2", "20b"):
        assert_same_ids(
            kind, ["word " * 40_000, "x" * 70_000, "", " " * 70_000 + "y", "\n" * 70_000]
        )
    monkeypatch.setattr(byte_level, "_LONGEST_PIECE", 10)
    assert_same_ids("20b", ["<|endoftext|>    int\u0301 main\n    ", "short"])


def plain(merges: list[tuple[str, str]], **options: object) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = dict.fromkeys([*alphabet, *(a + b for a, b in merges)])
    vocab = {piece: index for index, piece in enumerate(pieces)}
    engine = Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return engine


def test_ids_need_not_be_in_the_order_of_the_merges() -> None:
    engine = plain([("b", "c"), ("a", "b"), ("ab", "c")])
    shuffled = json.loads(engine.to_str())
    vocab = shuffled["model"]["vocab"]
    vocab["bc"], vocab["ab"], vocab["a"], vocab["Z"] = (vocab[k] for k in ("ab", "Z", "bc", "a"))
    # abc is never made: b and c join first.
    shuffled["model"]["merges"] = shuffled["model"]["merges"][:2]
    engine = tokenizers.Tokenizer.from_str(json.dumps(shuffled))
    assert fast_engine(engine).encode(["abc abab"]).tokens.tolist() == engine.encode("abc abab").ids


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        # The library would never make abc (b and c join first); tiktoken would join a and bc.
        (plain([("b", "c"), ("a", "b"), ("ab", "c")]), "'abc' does not come from its own merge"),
        (plain([("a", "b")], unk_token="a"), "its model sets unk_token"),
        (plain([("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")]), "two merges give one piece"),
        (Tokenizer(models.WordLevel({"a": 0})), "not plain byte-level BPE"),
    ],
)
def test_what_would_differ_is_refused_with_its_reason(engine: Tokenizer, reason: str) -> None:
    with pytest.raises(NotFast, match=reason):
        fast_engine(engine)


def test_a_failed_proof_falls_back_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the engines took the runs of spaces apart in different ways.
    monkeypatch.setattr(byte_level, "_RUN_OF_SPACES", r" {{2,3}}|")
    built = build_tokenizer(*KINDS["20b"])
    assert built.engine.startswith("the tokenizers library (the ids of ")
    texts = ["a    b", "c"]
    assert built.tokenize_packed(texts).tokens.tolist() == flat(tokenizer("20b"), texts)


def test_a_trusted_engine_is_the_proved_one() -> None:
    trusting = build_tokenizer(*KINDS["20b"])
    trusting.trust(tokenizer("20b").engine)
    assert isinstance(trusting._fast, FastBytePairs)  # type: ignore[attr-defined]
    texts = ["  a   b", "naïve"]
    assert trusting.tokenize_packed(texts).tokens.tolist() == flat(trusting, texts)


@pytest.mark.parametrize(
    "engine", [None, types.SimpleNamespace(), types.SimpleNamespace(CoreBPE=str)]
)
def test_another_version_of_tiktoken_is_done_without(
    monkeypatch: pytest.MonkeyPatch, engine: object
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken._tiktoken", engine)
    built = build_tokenizer(*KINDS["quickstart"])
    built.trust(None)
    assert built.engine.startswith(
        "the tokenizers library (tiktoken is missing or of another version"
    )
    assert not built.disproved
    assert built.tokenize_packed(["a b"]).tokens.tolist() == built.tokenize("a b")
