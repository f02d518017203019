"""Bytes as tokens: no vocabulary file, no training. Good for tests and for odd scripts.

The text's UTF-8 bytes are its ids. As in GPT-NeoX the vocabulary has 512 entries, 0 is the end of a
document and 1 is padding; the two share their ids with the bytes NUL and SOH, which text does not use.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatron.tokenizer.abstract import Tokenizer
from megatron.tokenizer.vocab_files import fingerprint

_VOCAB_SIZE = 512


class CharLevelTokenizer(Tokenizer):
    """UTF-8 bytes. Ids from 256 on stand for nothing and are shown as U+FFFD."""

    name = "CharLevelTokenizer"

    @property
    def vocab_size(self) -> int:
        return _VOCAB_SIZE

    @property
    def eod(self) -> int:
        return 0

    @property
    def pad(self) -> int:
        return 1

    def fingerprint(self) -> str:
        return fingerprint(self.name)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def _decode(self, ids: list[int]) -> str:
        # 0xFF never occurs in UTF-8, so it decodes to one U+FFFD.
        return bytes(i if i < 256 else 0xFF for i in ids).decode(errors="replace")
