"""From the configuration's words to a tokenizer: the one place that knows all kinds."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from megatron.errors import TokenizerError
from megatron.neox_arguments.tokenizer_files import files_read, unset_files
from megatron.tokenizer.abstract import Tokenizer
from megatron.tokenizer.char_level import CharLevelTokenizer
from megatron.tokenizer.hugging_face import gpt2_bpe_tokenizer, hf_gpt2_tokenizer, hf_tokenizer
from megatron.tokenizer.sentence_piece import sentence_piece_tokenizer
from megatron.tokenizer.tiktoken_encodings import tiktoken_tokenizer

# From the files that it reads, by key, and what vocab_file says, which may be the name of an encoding.
_BUILDERS: dict[str, Callable[[Mapping[str, Path], str], Tokenizer]] = {
    "GPT2BPETokenizer": lambda files, _: gpt2_bpe_tokenizer(
        files["vocab_file"], files["merge_file"]
    ),
    "HFTokenizer": lambda files, _: hf_tokenizer(files["vocab_file"]),
    "HFGPT2Tokenizer": lambda files, _: hf_gpt2_tokenizer(files["vocab_file"], files["merge_file"]),
    "CharLevelTokenizer": lambda files, _: CharLevelTokenizer(),
    "SPMTokenizer": lambda files, _: sentence_piece_tokenizer(files["vocab_file"]),
    "TiktokenTokenizer": lambda _, name: tiktoken_tokenizer(name),
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
        if unset := unset_files(name, vocab_file, merge_file):
            raise TokenizerError("\n".join(unset))
        return _BUILDERS[name](files_read(name, vocab_file, merge_file), vocab_file or "")
    known = ", ".join(TOKENIZER_TYPES)
    close = difflib.get_close_matches(tokenizer_type.lower(), kinds, n=1)
    hint = f" (did you mean {kinds[close[0]]}?)" if close else ""
    raise TokenizerError(f"tokenizer_type: {tokenizer_type!r} is unknown{hint}; expected {known}")
