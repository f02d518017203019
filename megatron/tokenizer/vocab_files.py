"""Reading vocabulary files: every way in which one can be missing or broken, said in one message."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from megatron.errors import TokenizerError


def read_bytes(path: Path, what: str) -> bytes:
    """All of the file.

    Args:
        path: the file.
        what: what it should be, for the message, such as ``a GPT-2 vocab.json``.

    Raises:
        TokenizerError: there is no such file, or it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"{path}: cannot be read: {error.strerror or error}; expected {what}\n"
            "  to do: set vocab_file (and merge_file) to the files of the tokenizer"
        ) from error


def parse_json_object(data: bytes, path: Path, what: str) -> dict[str, Any]:
    """The JSON object that ``data``, the content of ``path``, holds.

    Raises:
        TokenizerError: it is not UTF-8, not JSON, or not an object.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: is not valid JSON: {error}; expected {what}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: holds a JSON {type(value).__name__}; expected {what}")
    return value


def fingerprint(name: str, *parts: bytes) -> str:
    """SHA-256 over the kind's name and its files, each with its length in front."""
    digest = hashlib.sha256(name.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
