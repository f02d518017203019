"""Which files each kind of tokenizer reads: to open them, to miss them in time, to compare hosts by them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_GPT2: Final = {"vocab_file": "vocab.json", "merge_file": "merges.txt"}
# By tokenizer_type: the keys that have to be set, and what each of them names.
NEEDED_FILES: Final[Mapping[str, Mapping[str, str]]] = {
    "GPT2BPETokenizer": _GPT2,
    "HFTokenizer": {"vocab_file": "tokenizer.json"},
    "HFGPT2Tokenizer": {
        "vocab_file": "vocab.json or the folder that holds it; nothing is downloaded"
    },
    "CharLevelTokenizer": {},
    "SPMTokenizer": {"vocab_file": "model, usually tokenizer.model"},
    "TiktokenTokenizer": {
        "vocab_file": "encoding, such as cl100k_base, or a .tiktoken file of that name"
    },
}


def unset_files(
    tokenizer_type: str, vocab_file: str | None = None, merge_file: str | None = None
) -> list[str]:
    """What to say of each key that the tokenizer needs and that is not set."""
    given = {"vocab_file": vocab_file, "merge_file": merge_file}
    return [
        f"{tokenizer_type} needs {key}, which is not set: name its {what} "
        f"(`{key}` in the configuration, `--{key.replace('_', '-')}` on the command line)"
        for key, what in NEEDED_FILES[tokenizer_type].items()
        if not given[key]
    ]


def files_read(
    tokenizer_type: str, vocab_file: str | None = None, merge_file: str | None = None
) -> dict[str, Path]:
    """The files that the tokenizer opens, whether they are there or not, by the key that speaks of them.

    A key that it does not look at is not in it, nor one that names no file: an encoding of tiktoken's.
    """
    needed = NEEDED_FILES[tokenizer_type]
    if not vocab_file or "vocab_file" not in needed:
        return {}
    vocab = Path(vocab_file)
    if tokenizer_type == "TiktokenTokenizer" and not vocab.is_file() and not vocab.parent.name:
        return {}
    if tokenizer_type == "HFGPT2Tokenizer":
        vocab = vocab / _GPT2["vocab_file"] if vocab.is_dir() else vocab
        beside = vocab.parent / _GPT2["merge_file"]
        return {"vocab_file": vocab, "merge_file": Path(merge_file) if merge_file else beside}
    files = {"vocab_file": vocab}
    if merge_file and "merge_file" in needed:
        files["merge_file"] = Path(merge_file)
    return files
