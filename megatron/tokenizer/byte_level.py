"""Byte-level BPE through tiktoken's engine: the ids of the `tokenizers` library, several times faster.

Nothing is downloaded and none of tiktoken's own encodings is used: the engine is made from the
vocabulary and merges of a `tokenizers.Tokenizer`, and is taken only where it is known to give the same
ids (:func:`fast_engine`).

Why the merges agree. tiktoken joins two neighbours whenever the result is a piece, the lowest rank
first; the library only where that very pair is listed. These differ only if a piece's bytes can also
end up as another pair of neighbours. Until a merge crosses the edges of those bytes, they develop as
they would alone; so if every piece, encoded alone, becomes that one piece, no other pair occurs
anywhere. That is checked for every piece of the vocabulary. Ranks are the order of the merges, and a
table turns them into ids, which need not be in that order.

How a text is cut into words, and added tokens, is proved by trying (:data:`AWKWARD_TEXTS`). Runs of
spaces that are tokens of their own (in the 20B tokenizer: 2 to 24) become a word of the pattern; the
white space before such a run then has to end where it begins. Other added tokens split the text first.
"""

from __future__ import annotations

import importlib
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from megatron.tokenizer.abstract import TokenBatch
from megatron.tokenizer.long_texts import description_may_be_cut, pieces

# A piece without a place to cut it at is left to the library from this size on: the backtracking of
# tiktoken's pattern is limited. In characters.
_LONGEST_PIECE = 256 * 1024

# GPT-2's words (Radford et al. 2019): endings of verbs, letters, digits, signs, each with a space
# before them; white space, without the last one where a word follows. Written so that the matcher
# tries less: endings share their apostrophe, and what reaches the end needs no look behind it.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
_WHITE_SPACE = r"\s++$|\s+(?!\S)|\s"

# As _WHITE_SPACE, but it ends where two spaces begin; in front of it, the run of spaces itself.
_RUN_OF_SPACES = r" {{2,{longest}}}|"
_WHITE_SPACE_BETWEEN_RUNS = r"(?:(?!  )\s)+(?!\S)|(?:(?!  )\s)+"

# One of every 251 characters from here to the end of Unicode is in the proof, and all before it.
_FIRST_SAMPLED = 0x3000
_SAMPLE_STEP = 251

# The engine looks for special tokens even where it knows none, at every character; one that is looked
# for and never allowed avoids that. The text itself has no special meaning.
_NEVER_ALLOWED = "\U0010fffe\U0010ffff"

_NO_SPECIAL_TOKENS: set[str] = set()

# A vocabulary learnt from text may lack them.
_NEVER_IN_UTF8 = frozenset([0xC0, 0xC1, *range(0xF5, 0x100)])

_SURROGATES = range(0xD800, 0xE000)


def _awkward_texts() -> tuple[str, ...]:
    ends = ("x", "é", "7", "!", "\n", "\t", "\u3000", "'s", "<|endoftext|>", "")
    counts = (1, 2, 3, 23, 24, 25, 26, 49)
    runs = [before + " " * n + after for n in counts for before in ends for after in ends]
    first = (" ", "\n", "\t", "\r\n", "\x0b", "\x85", "\u2028", "\u200b")
    second = (" ", "  ", "\n", " \n", "   \n ", "\n\n  ")
    mixed = [a + b + c for a in first for b in second for c in ("", "a", " ", "'ll", "\n")]
    written = [
        "don't DON'T I'll we've 'tis rock'n'roll they'd''s 's",
        "for (int i = 0; i < n; ++i) {\n\t\treturn a[i] << 2;  // ok\n    }\n\n\n",
        "1234567890 3.14159 1,000,000 0xFF ½ ² ٣ Ⅷ 一二三",
        f"a{_NEVER_ALLOWED} b{_NEVER_ALLOWED}",
        "e\u0301 é A\u030a Å \u212b \u1100\u1161 각 q\u0323\u0307 \u0344 ;\u037e >\u0338<|endoftext|>\u0338",
        "  \u0301 a \u0301  \u0338b \u3099か\u3099",
        "日本語のテキスト。中文文本 한국어 עברית العربية हिन्दी ไทย Ελληνικά русский",
        "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ☎️ \ufeff\u200d\u00ad\ufffd\x00\x01\x7f",
        "<|endoftext|><|padding|><|endoftext|", "<<|endoftext|>> <|padding|> a<|endoftext|>b",
        "a" * 300 + " " + "ab" * 200 + "\n" * 120 + "=" * 200 + "\t" * 50,
        "https://example.org/a_b-c?d=e&f=%20#g  user@example.org\r\n__init__ $x^{2}_{i}$",
    ]  # fmt: skip
    points = [*range(_FIRST_SAMPLED), *range(_FIRST_SAMPLED, 0x110000, _SAMPLE_STEP)]
    characters = [chr(p) for p in points if p not in _SURROGATES]
    # Beside a letter, a digit and a sign, the cuts show what kind of character it is taken for.
    beside = ["".join(f"a{c}1{c}! {c}" for c in characters[i : i + 64])
              for i in range(0, len(characters), 64)]  # fmt: skip
    return (*runs, *mixed, *written, *beside)


AWKWARD_TEXTS: tuple[str, ...] = _awkward_texts()
"""What both engines must give the same ids for before the fast one is used."""


class NotFast(Exception):
    """Says why a tokenizer cannot be run by tiktoken's engine."""


class OtherIds(NotFast):
    """It can be run, but gives other ids."""


class FastBytePairs:
    """tiktoken's engine with the vocabulary of a `tokenizers.Tokenizer`.

    Args:
        engine: the library's object; it does the few pieces that the fast engine cannot do.
        proved: it has been checked already, elsewhere, so that each piece need not be tried.

    Raises:
        NotFast: it is not plain byte-level BPE.
        OtherIds: its merges have a meaning of their own; found unless ``proved``.
    """

    def __init__(self, engine: tokenizers.Tokenizer, *, proved: bool = False) -> None:
        self._slow = engine
        content = json.loads(engine.to_str())
        if not description_may_be_cut(content):
            raise NotFast("it is not plain byte-level BPE")
        model, added = content["model"], content["added_tokens"]
        _check_model(model)
        self._composes = content["normalizer"] is not None
        runs, self._specials = _added_tokens(added)
        self._split = re.compile("|".join(map(re.escape, self._longest_first()))) if added else None
        ranks, ids = _ranks_and_ids(model)
        if not proved:
            _check_pieces(ranks, ids, engine)
        for text, index in runs.items():
            ids.append(index)
            ranks[text.encode()] = len(ids) - 1
        longest = max(map(len, runs), default=0)
        pattern = f"{_WORDS}|{_WHITE_SPACE}"
        if longest:
            run = _RUN_OF_SPACES.format(longest=longest)
            pattern = f"{run}{_WORDS}|{_WHITE_SPACE_BETWEEN_RUNS}"
        self._ids = np.array(ids, dtype=np.int64)
        self._core = _core(ranks, {_NEVER_ALLOWED: len(ids)}, pattern)

    def _longest_first(self) -> list[str]:
        return sorted(self._specials, key=len, reverse=True)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """The ids of each text; the texts hold no lone surrogates."""
        parts: list[NDArray[np.int64]] = []
        lengths = np.empty(len(texts), dtype=np.int64)
        for i, text in enumerate(texts):
            before = len(parts)
            for piece in pieces(text):
                self._encode_piece(piece, parts)
            lengths[i] = sum(part.size for part in parts[before:])
        return TokenBatch(np.concatenate(parts) if parts else np.empty(0, np.int64), lengths)

    def _encode_piece(self, text: str, parts: list[NDArray[np.int64]]) -> None:
        if len(text) > _LONGEST_PIECE:
            parts.append(np.array(self._slow.encode(text).ids, dtype=np.int64))
        elif self._split is None or not any(special in text for special in self._specials):
            parts.append(self._encode_words(text))
        else:
            start = 0
            for match in self._split.finditer(text):
                parts.append(self._encode_words(text[start : match.start()]))
                parts.append(np.array([self._specials[match[0]]], dtype=np.int64))
                start = match.end()
            parts.append(self._encode_words(text[start:]))

    def _encode_words(self, text: str) -> NDArray[np.int64]:
        if self._composes and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        ranks = self._core.encode_to_tiktoken_buffer(text, _NO_SPECIAL_TOKENS)
        return self._ids[np.frombuffer(ranks, dtype=np.uint32)]


def _core(ranks: dict[bytes, int], specials: dict[str, int], pattern: str) -> Any:
    """tiktoken's engine. That part of the package is nobody's promise, and may change with its version."""
    try:
        core = importlib.import_module("tiktoken._tiktoken").CoreBPE(ranks, specials, pattern)
        _ = core.encode_to_tiktoken_buffer
    except (ImportError, AttributeError, TypeError) as error:
        raise NotFast(f"tiktoken is missing or of another version: {error}") from error
    return core


def fast_engine(engine: tokenizers.Tokenizer) -> FastBytePairs:
    """The fast engine for ``engine``, proved equal to it.

    Raises:
        NotFast: there is none.
        OtherIds: its ids differ.
    """
    fast = FastBytePairs(engine)
    tokens, lengths = fast.encode(AWKWARD_TEXTS)
    ends = np.cumsum(lengths)
    # The library's threads would not survive a fork that comes later, and the proof is short.
    for text, start, end in zip(AWKWARD_TEXTS, ends - lengths, ends, strict=True):
        if engine.encode(text).ids != tokens[start:end].tolist():
            raise OtherIds(f"the ids of {text[:40]!r} differ")
    return fast


def _check_model(model: dict[str, Any]) -> None:
    """Refuse what changes the meaning of merges."""
    options = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    for option in (*options, "fuse_unk", "byte_fallback", "ignore_merges"):
        if model.get(option):
            raise NotFast(f"its model sets {option}")


def _added_tokens(added: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int]]:
    """Added tokens as runs of spaces → id and others → id."""
    runs = {t["content"]: t["id"] for t in added if t["content"].strip(" ") == ""}
    lengths = sorted(map(len, runs))
    if lengths and lengths != list(range(2, len(lengths) + 2)):
        raise NotFast("its runs of spaces are not of all lengths from 2 on")
    others = {t["content"]: t["id"] for t in added if t["content"] not in runs}
    if any(t["normalized"] for t in added if t["content"] in others):
        raise NotFast("it looks for added tokens after composing characters")
    if any(text.isspace() for text in others):
        raise NotFast("it adds tokens of white space other than runs of spaces")
    return runs, others


def _ranks_and_ids(model: dict[str, Any]) -> tuple[dict[bytes, int], list[int]]:
    """Each piece's bytes → rank, and the id of each rank."""
    vocab: dict[str, int] = model["vocab"]
    byte_of = _bytes_of_characters()
    merged = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    used = [c for c, byte in byte_of.items() if byte not in _NEVER_IN_UTF8 or c in vocab]
    names = [*used, *(m.replace(" ", "", 1) for m in merged)]
    if len(set(names)) != len(names):
        raise NotFast("two merges give one piece")
    unknown = next((name for name in names if name not in vocab), None)
    if unknown is not None:
        raise NotFast(f"the piece {unknown!r} is not in the vocabulary")
    ranks = {bytes(byte_of[c] for c in name): rank for rank, name in enumerate(names)}
    return ranks, [vocab[name] for name in names]


def _check_pieces(ranks: dict[bytes, int], ids: list[int], engine: tokenizers.Tokenizer) -> None:
    """See that each piece, encoded alone, becomes itself: then the merges agree (see above)."""
    character_of = {byte: character for character, byte in _bytes_of_characters().items()}
    for piece, rank in ranks.items():
        name = "".join(map(character_of.__getitem__, piece))
        if [token.id for token in engine.model.tokenize(name)] != [ids[rank]]:
            raise OtherIds(f"the piece {name!r} does not come from its own merge")


def _bytes_of_characters() -> dict[str, int]:
    """The byte that each of the alphabet's 256 characters stands for.

    Printable bytes of Latin-1 stand for themselves; the others, in order, have the characters from
    U+0100 on, as GPT-2's vocabulary writes them.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(range(256, 512))
    return {c if (c := chr(b)) in alphabet else chr(next(others)): b for b in range(256)}
