"""How many ids a tokenizer has, counted in its files without loading it."""

from __future__ import annotations

import json
from typing import Any

from megatron.neox_arguments.sections import TokenizerArgs
from megatron.neox_arguments.tokenizer_files import files_read

# Ids that a tokenizer has whatever its files say.
_BYTES = {"CharLevelTokenizer": 512}
# Entries that HFGPT2Tokenizer puts behind GPT-2's vocabulary where they are missing.
_ADDED_BY_HF = ("<|endoftext|>", "<|padding|>")


def count_vocabulary(tokenizer: TokenizerArgs) -> int | None:
    """The ids from 0 to the largest; None where the files are not given, not there, or not readable.

    The same number as the tokenizer itself gives, which checks more and takes longer.
    """
    kind = tokenizer.tokenizer_type
    if kind in _BYTES:
        return _BYTES[kind]
    path = files_read(kind, tokenizer.vocab_file, tokenizer.merge_file).get("vocab_file")
    if path is None:
        return None
    try:
        content = json.loads(path.read_bytes())
        entries = _entries_of(kind, content)
        return max(entries.values()) + 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _entries_of(kind: str, content: dict[str, Any]) -> dict[str, int]:
    if kind != "HFTokenizer":
        missing = _ADDED_BY_HF if kind == "HFGPT2Tokenizer" else ()
        entries = dict(content)
        for token in missing:
            entries.setdefault(token, len(entries))
        return entries
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pairs of piece and score
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
    return {**vocabulary, **added}
