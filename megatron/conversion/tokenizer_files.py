"""The files of a tokenizer, from a configuration of ours into a Hugging Face folder, and back.

Where ``tokenizer_config.json`` lies beside the vocabulary, the folder is one of Hugging Face's own, and its
files travel as they are. Else the few that transformers needs are made.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron.conversion.hf_folder import CONFIG_NAME, json_bytes, read_json
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import TokenizerArgs
from megatron.neox_arguments.tokenizer_files import files_read
from megatron.runtime.durable import write_file
from megatron.tokenizer import Tokenizer, build_tokenizer

_CONFIG, _GENERATION = "tokenizer_config.json", "generation_config.json"
_JSON, _MODEL, _VOCAB, _MERGES = "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"
# What a folder of Hugging Face's has about its tokenizer and about generating.
_THEIRS = (
    _CONFIG,
    _GENERATION,
    _JSON,
    _MODEL,
    _VOCAB,
    _MERGES,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)

# By tokenizer_type, with what transformers calls it: which of the configuration's files goes where.
_CLASSES = {
    "HFTokenizer": ("PreTrainedTokenizerFast", {"vocab_file": _JSON}),
    "GPT2BPETokenizer": ("GPT2Tokenizer", {"vocab_file": _VOCAB, "merge_file": _MERGES}),
    "HFGPT2Tokenizer": ("GPT2Tokenizer", {"vocab_file": _VOCAB, "merge_file": _MERGES}),
    "SPMTokenizer": ("LlamaTokenizer", {"vocab_file": _MODEL}),
}


@dataclass(frozen=True)
class TokenIds:
    """The ids that ``config.json`` and ``generation_config.json`` name."""

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tokenizer_of(args: TokenizerArgs) -> Tokenizer:
    """The tokenizer of a run.

    Raises:
        TokenizerError: a file is missing or broken.
    """
    return build_tokenizer(args.tokenizer_type, args.vocab_file, args.merge_file)


def write_tokenizer(args: TokenizerArgs, tokenizer: Tokenizer, folder: Path) -> TokenIds:
    """Put the files of ``tokenizer`` into ``folder``, and ``generation_config.json`` with its ids.

    Raises:
        CheckpointError: transformers has no such tokenizer.
    """
    if tokenizer.name not in _CLASSES:
        raise CheckpointError(
            f"tokenizer_type: transformers has no {tokenizer.name}\n"
            "  to do: convert without it (--no_save_tokenizer), or use another kind of tokenizer"
        )
    theirs, names = _CLASSES[tokenizer.name]
    source = _folder_of(args)
    assert source is not None  # those kinds are read from files
    if (source / _CONFIG).exists():
        for name in _THEIRS:
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
    else:
        files = files_read(args.tokenizer_type, args.vocab_file, args.merge_file)
        for key, name in names.items():
            shutil.copyfile(files[key], folder / name)
        write_file(folder / _CONFIG, json_bytes(_config(theirs, tokenizer)))
    ids = token_ids(args, tokenizer)
    if not (folder / _GENERATION).exists():
        write_file(folder / _GENERATION, json_bytes(ids.as_dict()))
    return ids


def _folder_of(args: TokenizerArgs) -> Path | None:
    if args.vocab_file is None:
        return None
    path = Path(args.vocab_file)
    return path if path.is_dir() else path.parent


def _config(theirs: str, tokenizer: Tokenizer) -> dict[str, Any]:
    special = {"bos_token": _bos(tokenizer), "eos_token": tokenizer.eod}
    if theirs == "GPT2Tokenizer":
        special["unk_token"] = tokenizer.eod
    if tokenizer.pad is not None:
        special["pad_token"] = tokenizer.pad
    texts = {name: tokenizer.detokenize([number]) for name, number in special.items()}
    return {"tokenizer_class": theirs, "clean_up_tokenization_spaces": False, **texts}


def _bos(tokenizer: Tokenizer) -> int:
    """What stands in front of a text: what the tokenizer puts there, else the end of the one before."""
    return (tokenizer.tokenize("") or [tokenizer.eod])[0]


def token_ids(args: TokenizerArgs, tokenizer: Tokenizer) -> TokenIds:
    """The ids that a folder with or without the files of ``tokenizer`` names."""
    source = _folder_of(args)
    if source is not None and all((source / name).exists() for name in (_CONFIG, _GENERATION)):
        return _ids_in(source / _GENERATION)
    return TokenIds(_bos(tokenizer), tokenizer.eod, tokenizer.pad)


def _ids_in(path: Path) -> TokenIds:
    found = read_json(path)
    return TokenIds(*(found.get(name) for name in TokenIds.__dataclass_fields__))


def copy_tokenizer(sources: Sequence[Path], target: Path) -> dict[str, str]:
    """Copy the files of a tokenizer.

    Args:
        sources: folders in which it may lie; the first that has one counts.
        target: made when there are any.

    Returns:
        The keys of ours that name the copies; none where there is nothing that we can read.
    """
    in_each = {source: [name for name in _THEIRS if (source / name).exists()] for source in sources}
    source, found = next(((place, names) for place, names in in_each.items() if names), (None, []))
    if source is None:
        return {}
    target.mkdir(parents=True)
    for name in found:
        shutil.copyfile(source / name, target / name)
    if _GENERATION not in found:
        _keep_ids(source / CONFIG_NAME, target)
    if _JSON in found:
        return {"tokenizer_type": "HFTokenizer", "vocab_file": _JSON}
    if _MODEL in found and not has_list_of_tokens(source):
        return {"tokenizer_type": "SPMTokenizer", "vocab_file": _MODEL}
    if _VOCAB in found and _MERGES in found:
        return {"tokenizer_type": "HFGPT2Tokenizer", "vocab_file": _VOCAB, "merge_file": _MERGES}
    return {}


def _keep_ids(config: Path, target: Path) -> None:
    """Note the ids that a ``config.json`` names: older folders have them nowhere else."""
    ids = _ids_in(config) if config.exists() else TokenIds()
    if ids != TokenIds():
        write_file(target / _GENERATION, json_bytes(ids.as_dict()))


def has_list_of_tokens(folder: Path) -> bool:
    """Whether its ``tokenizer.model`` is like Llama 3's: a line for each token in base64, for tiktoken."""
    path = folder / _MODEL
    if not path.exists():
        return False
    with path.open("rb") as file:
        return re.fullmatch(rb"[A-Za-z0-9+/]+=* \d+\s*", file.readline(200)) is not None
