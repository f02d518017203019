"""Cutting a long text where byte-level BPE cuts it anyway, so that its ids stay the same.

The `tokenizers` library needs some 140 bytes of memory for each byte of a text, so that one document of
200 MB would take 28 GB. GPT-2's way of cutting text into words never joins a letter or digit to the
white space after it: what stands before such a place and what stands behind it are tokenized
independently of each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers

# Characters. Longer texts are cut at the first place after each stretch of this length.
PIECE_CHARACTERS = 64 * 1024

# Characters that are tokenized at a time.
GROUP_CHARACTERS = 1024 * 1024

_PLACE = re.compile(r"[^\W_](?=[ \n])")


def may_be_cut(engine: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer treats the two sides of such a place independently.

    True for byte-level BPE that does nothing else to a text than to compose it (NFC does not reach
    across a space), and whose added tokens do not reach across such a place either.
    """
    return description_may_be_cut(json.loads(engine.to_str()))


def description_may_be_cut(content: dict[str, Any]) -> bool:
    """:func:`may_be_cut` for the content of a `tokenizer.json`."""
    words, added = content["pre_tokenizer"] or {}, content["added_tokens"]
    return bool(
        content["model"]["type"] == "BPE"
        and words.get("type") == "ByteLevel"
        and not words["add_prefix_space"]
        and words.get("use_regex", True)
        and (content["normalizer"] or {"type": "NFC"})["type"] == "NFC"
        and (content["post_processor"] or {"type": "ByteLevel"})["type"] == "ByteLevel"
        and not any(
            token["lstrip"] or token["rstrip"] or token["single_word"] or _mixes(token["content"])
            for token in added
        )
    )


def _mixes(token: str) -> bool:
    """Whether a token holds white space beside anything else."""
    return not token.isspace() and any(character.isspace() for character in token)


def pieces(text: str) -> Iterator[str]:
    """``text`` in pieces of a little more than ``PIECE_CHARACTERS``; at least one piece."""
    start = 0
    while place := _PLACE.search(text, start + PIECE_CHARACTERS):
        yield text[start : place.end()]
        start = place.end()
    yield text[start:] if start else text


def groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """``texts`` in order, in lists that end as soon as they hold ``GROUP_CHARACTERS``."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group
