"""From the configuration's words to a tokenizer: the one place that knows all kinds."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from megatron.errors import TokenizerError
from megatron.tokenizer.abstract import Tokenizer
from megatron.tokenizer.char_level import CharLevelTokenizer
from megatron.tokenizer.hugging_face import gpt2_bpe_tokenizer, hf_gpt2_tokenizer, hf_tokenizer
from megatron.tokenizer.sentence_piece import sentence_piece_tokenizer
from megatron.tokenizer.tiktoken_encodings import tiktoken_tokenizer
from megatron.tokenizer.vocab_files import required


def _hf(vocab_file: str | None, merge_file: str | None) -> Tokenizer:
    return hf_tokenizer(required(vocab_file, "vocab_file", "HFTokenizer", "tokenizer.json"))


def _gpt2_bpe(vocab_file: str | None, merge_file: str | None) -> Tokenizer:
    return gpt2_bpe_tokenizer(
        required(vocab_file, "vocab_file", "GPT2BPETokenizer", "vocab.json"),
        required(merge_file, "merge_file", "GPT2BPETokenizer", "merges.txt"),
    )


def _hf_gpt2(vocab_file: str | None, merge_file: str | None) -> Tokenizer:
    what = "vocab.json or the folder that holds it; nothing is downloaded"
    vocab = required(vocab_file, "vocab_file", "HFGPT2Tokenizer", what)
    return hf_gpt2_tokenizer(vocab, Path(merge_file) if merge_file else None)


def _char_level(vocab_file: str | None, merge_file: str | None) -> Tokenizer:
    return CharLevelTokenizer()


def _spm(vocab_file: str | None, merge_file: str | None) -> Tokenizer:
    what = "model, usually tokenizer.model"
    return sentence_piece_tokenizer(required(vocab_file, "vocab_file", "SPMTokenizer", what))


def _tiktoken(vocab_file: str | None, merge_file: str | None) -> Tokenizer:
    what = "encoding, such as cl100k_base, or a .tiktoken file of that name"
    return tiktoken_tokenizer(str(required(vocab_file, "vocab_file", "TiktokenTokenizer", what)))


_BUILDERS: dict[str, Callable[[str | None, str | None], Tokenizer]] = {
    "GPT2BPETokenizer": _gpt2_bpe,
    "HFTokenizer": _hf,
    "HFGPT2Tokenizer": _hf_gpt2,
    "CharLevelTokenizer": _char_level,
    "SPMTokenizer": _spm,
    "TiktokenTokenizer": _tiktoken,
}

TOKENIZER_TYPES: tuple[str, ...] = tuple(_BUILDERS)
"""The values that ``tokenizer_type`` may have."""


def build_tokenizer(
    tokenizer_type: str, vocab_file: str | None = None, merge_file: str | None = None
) -> Tokenizer:
    """The tokenizer that the configuration names.

    Args:
        tokenizer_type: one of :data:`TOKENIZER_TYPES`; case does not matter, as in GPT-NeoX.
        vocab_file: `tokenizer.json` (HFTokenizer), `vocab.json` (GPT-2's two kinds), a SentencePiece
            model (SPMTokenizer), an encoding's name or file (TiktokenTokenizer); CharLevelTokenizer
            needs none and does not look at it.
        merge_file: `merges.txt` for GPT-2's two kinds.

    Raises:
        TokenizerError: the kind is unknown, or a file is missing, broken or does not fit.
    """
    kinds = {name.lower(): name for name in _BUILDERS}
    name = kinds.get(tokenizer_type.lower())
    if name is not None:
        return _BUILDERS[name](vocab_file, merge_file)
    known = ", ".join(TOKENIZER_TYPES)
    close = difflib.get_close_matches(tokenizer_type.lower(), kinds, n=1)
    hint = f" (did you mean {kinds[close[0]]}?)" if close else ""
    raise TokenizerError(f"tokenizer_type: {tokenizer_type!r} is unknown{hint}; expected {known}")
