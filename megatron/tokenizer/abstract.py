"""What every tokenizer can do.

A tokenizer is a pure function of its files: the same text gives the same ids in every process and on
every machine. Ids are whole numbers in ``[0, vocab_size)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron.errors import TokenizerError


class TokenBatch(NamedTuple):
    """The ids of several texts, end to end.

    Attributes:
        tokens: int64 ``[sum of lengths]``.
        lengths: int64 ``[texts]``, tokens of each text; 0 where a text gives none.
    """

    tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Tokenizer(ABC):
    """Text ⇄ ids. A kind of tokenizer fills in the abstract members; users call the rest.

    Attributes:
        name: the ``tokenizer_type`` that builds it.
    """

    name: str

    @property
    def engine(self) -> str:
        """What encodes texts in bulk (:meth:`tokenize_packed`); never a matter of which ids."""
        return "this project"

    def trust(self, engine: str | None) -> None:  # noqa: B027 - most kinds have nothing to prove
        """Use :attr:`engine` as another process found it for the same files, without proof anew.

        None takes the fastest that can be made: another process is about to prove it.
        """

    @property
    def disproved(self) -> bool:
        """Whether :attr:`engine` found that the fastest gives other ids, against :meth:`trust` in None."""
        return False

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, special tokens included: every id is below it."""

    @property
    @abstractmethod
    def eod(self) -> int:
        """Id of the end-of-document token.

        Raises:
            TokenizerError: the vocabulary has none.
        """

    @property
    def pad(self) -> int | None:
        """Id of the padding token, or None where the vocabulary has none."""
        return None

    @abstractmethod
    def fingerprint(self) -> str:
        """A hexadecimal hash of the kind and its files: equal only where all ids are equal."""

    @abstractmethod
    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; the texts hold no lone surrogates."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """The text of ids that are all in ``[0, vocab_size)``."""

    def tokenize(self, text: str) -> list[int]:
        """The ids of ``text``.

        Raises:
            TokenizerError: ``text`` holds lone surrogates, which no UTF-8 file can hold.
        """
        return self.tokenize_batch([text])[0]

    def tokenize_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in order; the same as :meth:`tokenize` one by one, but faster."""
        self.check_characters(texts)
        return self._encode(texts)

    @staticmethod
    def check_characters(texts: Sequence[str]) -> None:
        """Raise a :class:`TokenizerError` where a text holds lone surrogates."""
        try:
            for text in texts:
                if not text.isascii():
                    text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"text: {error.object[error.start]!r} at character {error.start:,} is half of a "
                "surrogate pair, which is no character: replace it before tokenizing"
            ) from error

    def tokenize_packed(self, texts: Sequence[str]) -> TokenBatch:
        """:meth:`tokenize_batch` as two arrays, the form in which ids travel between processes."""
        ids = self.tokenize_batch(texts)
        lengths = np.fromiter((len(x) for x in ids), dtype=np.int64, count=len(ids))
        total = int(lengths.sum())
        tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int64, count=total)
        return TokenBatch(tokens, lengths)

    def detokenize(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of ``ids``, special tokens written out; the inverse of :meth:`tokenize`.

        A cut in the middle of a character gives U+FFFD there. Tokenizers that normalise their input
        (the 20B one does, to NFC) give back the normalised text.

        Raises:
            TokenizerError: an id is not in the vocabulary.
        """
        plain = [int(i) for i in ids]
        wrong = next((i for i in plain if not 0 <= i < self.vocab_size), None)
        if wrong is not None:
            raise TokenizerError(
                f"token id {wrong} is not in the vocabulary of {self.name}, which has "
                f"{self.vocab_size} entries (0 … {self.vocab_size - 1}): do these ids come from "
                "another tokenizer?"
            )
        return self._decode(plain)
