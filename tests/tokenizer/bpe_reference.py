"""Byte-level BPE in plain, slow Python, written from its definition and independent of the library.

Radford et al. 2019, section 2.2: cut the text into words, write each word's UTF-8 bytes as 256 printable
characters, then join, again and again, the pair of neighbours that was learnt first.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from itertools import pairwise

import regex

_WORDS = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


def byte_letters() -> list[str]:
    """The printable character of each byte: itself if it is one, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 0x100
    for byte in range(256):
        letters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return letters


class SlowBPE:
    """Text → ids.

    Args:
        vocab: piece → id.
        merges: pairs in the order in which they were learnt.
        added: tokens that are cut out of the text first, the longest one wins.
        nfc: compose the rest to NFC.
    """

    def __init__(
        self,
        vocab: dict[str, int],
        merges: list[tuple[str, str]],
        added: dict[str, int] | None = None,
        nfc: bool = False,
    ) -> None:
        self._vocab, self._added, self._nfc = vocab, added or {}, nfc
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._letters = byte_letters()
        longest_first = sorted(self._added, key=len, reverse=True)
        self._cut = regex.compile("(" + "|".join(map(regex.escape, longest_first)) + ")")
        self._word = lru_cache(maxsize=None)(self._merge)

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._cut.split(text) if self._added else [text]:
            if part in self._added:
                ids.append(self._added[part])
                continue
            part = unicodedata.normalize("NFC", part) if self._nfc else part
            for word in _WORDS.findall(part):
                ids += self._word(word)
        return ids

    def _merge(self, word: str) -> list[int]:
        pieces = [self._letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            ranks = [self._ranks.get(pair, 1 << 60) for pair in pairwise(pieces)]
            best = min(ranks)
            if best == 1 << 60:
                break
            at = ranks.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return [self._vocab[piece] for piece in pieces]
