"""Texts → packed ids."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from megatron.errors import DataError
from megatron.preprocessing.encoding import JsonTextRecipe, pack_documents
from megatron.preprocessing.readers import TextChunk
from megatron.tokenizer import Tokenizer, build_tokenizer

BYTES = build_tokenizer("CharLevelTokenizer")
U16 = np.dtype("<u2")


class Words(Tokenizer):
    """Numbers in the text are its ids, after a 7 in front of every text."""

    name = "Words"
    vocab_size = 70_000
    eod = 9

    def fingerprint(self) -> str:
        return ""

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[7, *map(int, text.split())] for text in texts]

    def _decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("eod", "tokens", "lengths"),
    [(None, [97, 98, 99], [2, 1]), (0, [97, 98, 0, 99, 0], [3, 2])],
)
def test_documents_are_packed(eod: int | None, tokens: list[int], lengths: list[int]) -> None:
    packed = pack_documents(BYTES, ["", "ab", "", "c"], eod, U16)
    assert packed.tokens.tolist() == tokens
    assert packed.lengths.tolist() == lengths
    assert (packed.empty, packed.tokens.dtype, packed.lengths.dtype) == (2, U16, np.int32)


def test_nothing_but_empty_documents() -> None:
    packed = pack_documents(BYTES, ["", ""], 0, U16)
    assert (packed.tokens.size, packed.lengths.size, packed.empty) == (0, 0, 2)


def test_an_empty_text_is_empty_even_with_a_token_in_front() -> None:
    packed = pack_documents(Words(), ["", "3"], 9, U16)
    assert (packed.tokens.tolist(), packed.lengths.tolist(), packed.empty) == ([7, 3, 9], [3], 1)


def test_an_id_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(DataError, match="token id 65536 of Words does not fit uint16"):
        pack_documents(Words(), ["65535 65536"], None, U16)
    assert pack_documents(Words(), ["65536"], None, np.dtype("<i4")).tokens.tolist() == [7, 65536]


def test_each_key_is_packed_for_itself() -> None:
    rows = [{"a": "x", "b": ""}, {"a": "", "b": "yz"}, {"a": "\ud800", "b": "w"}]
    text = "\n".join(json.dumps(row) for row in rows).encode()
    recipe = JsonTextRecipe("CharLevelTokenizer", None, None, ("a", "b"), True, "uint16")
    encoder = recipe.build()
    encoded = encoder(TextChunk("f.jsonl", 1, text, 17))
    a, b = encoded.keys
    assert a.tokens.tolist() == [120, 0, 0xEF, 0xBF, 0xBD, 0]
    assert b.tokens.tolist() == [121, 122, 0, 119, 0]
    assert (a.empty, b.empty) == (1, 1)
    assert (encoded.text_bytes, encoded.stored_bytes, encoded.repaired) == (len(text), 17, 1)
