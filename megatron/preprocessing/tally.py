"""What a run has counted so far."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from megatron.preprocessing.encoding import EncodedChunk


@dataclass
class Tally:
    """Counts over chunks that are written.

    Attributes:
        documents, tokens, empty: of each token file: written, written, left out.
        repaired: texts in which lone surrogates were replaced by U+FFFD.
        bad_lines, missing_keys: lines that were left out because of them.
        masked_documents, masked_tokens: of the label file, see :class:`EncodedChunk`.
        text_bytes: uncompressed bytes of the input.
        stored_bytes: bytes of the input files on disk.
    """

    documents: list[int]
    tokens: list[int]
    empty: list[int]
    repaired: int = 0
    bad_lines: int = 0
    missing_keys: int = 0
    masked_documents: int = 0
    masked_tokens: int = 0
    text_bytes: int = 0
    stored_bytes: int = 0

    @classmethod
    def zero(cls, files: int) -> Tally:
        """Nothing yet, of ``files`` token files."""
        return cls([0] * files, [0] * files, [0] * files)

    @classmethod
    def of(cls, chunk: EncodedChunk) -> Tally:
        """What is in a chunk."""
        return cls(
            [packed.lengths.size for packed in chunk.keys],
            [packed.tokens.size for packed in chunk.keys],
            [packed.empty for packed in chunk.keys],
            chunk.repaired,
            chunk.bad_lines,
            chunk.missing_keys,
            chunk.masked_documents,
            chunk.masked_tokens,
            chunk.text_bytes,
            chunk.stored_bytes,
        )

    def __add__(self, other: Tally) -> Tally:
        def total(a: Any, b: Any) -> Any:
            return [x + y for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b

        mine, more = asdict(self), asdict(other)
        return Tally(**{name: total(mine[name], more[name]) for name in mine})
