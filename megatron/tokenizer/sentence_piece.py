"""``SPMTokenizer``: a SentencePiece model (`tokenizer.model`), through the optional package sentencepiece.

The model brings its own normalisation, so that what comes back from ids is the normalised text: for
most models without runs of spaces and line ends. A document ends with ``<|endoftext|>`` where the
vocabulary has it, as in GPT-NeoX, else with the model's own end of sequence.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from megatron.errors import TokenizerError
from megatron.tokenizer.abstract import Tokenizer
from megatron.tokenizer.vocab_files import fingerprint, read_bytes

_EOD_TOKEN = "<|endoftext|>"
_MODEL = "a model as SentencePiece's trainer saves it, usually tokenizer.model"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model behind our interface.

    Args:
        source: the file, for messages.
        model: the library's processor.
        content: hash of the file.
    """

    name = "SPMTokenizer"

    def __init__(self, source: str, model: Any, content: str) -> None:
        self._source, self._model, self._content = source, model, content
        index = model.piece_to_id(_EOD_TOKEN)  # that of the unknown token where it is no piece
        self._eod = index if model.id_to_piece(index) == _EOD_TOKEN else model.eos_id()

    @property
    def engine(self) -> str:
        return "the sentencepiece library"

    @property
    def vocab_size(self) -> int:
        return int(self._model.get_piece_size())

    @property
    def eod(self) -> int:
        if self._eod < 0:
            raise TokenizerError(
                f"{self._source}: no end-of-document token: neither {_EOD_TOKEN} nor an end of "
                "sequence; use a model that has one of them"
            )
        return int(self._eod)

    @property
    def pad(self) -> int | None:
        index = int(self._model.pad_id())
        return index if index >= 0 else None

    def fingerprint(self) -> str:
        return self._content

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._model.encode(list(texts), out_type=int, num_threads=1)
        return ids

    def _decode(self, ids: list[int]) -> str:
        # The library leaves control tokens out; here they are written, as for every tokenizer.
        parts: list[str] = []
        for is_control, group in groupby(ids, self._model.is_control):
            some = list(group)
            parts += (
                map(self._model.id_to_piece, some) if is_control else [self._model.decode(some)]
            )
        return "".join(parts)


def sentence_piece_tokenizer(vocab_file: Path) -> SentencePieceTokenizer:
    """Read a SentencePiece model.

    Raises:
        TokenizerError: the package is not installed, or the file cannot be read or is no such model.
    """
    try:
        sentencepiece = importlib.import_module("sentencepiece")
    except ImportError as error:
        raise TokenizerError(
            "SPMTokenizer needs the package sentencepiece: `pip install sentencepiece`"
        ) from error
    data = read_bytes(vocab_file, _MODEL)
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(data)
    except RuntimeError as error:
        raise TokenizerError(
            f"{vocab_file}: cannot be used as a SentencePiece model: {error}; expected {_MODEL}"
        ) from error
    name = SentencePieceTokenizer.name
    return SentencePieceTokenizer(str(vocab_file), model, fingerprint(name, data))
