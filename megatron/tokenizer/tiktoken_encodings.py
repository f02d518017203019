"""``TiktokenTokenizer``: OpenAI's encodings, through the tiktoken package, from files that are here.

``vocab_file`` is the name of an encoding (`cl100k_base`), as in GPT-NeoX, or a `.tiktoken` file named
after one (`vocabularies/cl100k_base.tiktoken`): such a file lists pieces and ranks alone, and the
encoding gives the pattern of words and the special tokens. Nothing is downloaded: a name works where
tiktoken's cache holds the file. Text that looks like a special token is text like any other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.errors import TokenizerError
from megatron.tokenizer.abstract import TokenBatch, Tokenizer
from megatron.tokenizer.vocab_files import fingerprint, read_bytes

_FILE = "a .tiktoken file, a piece in base64 and its rank a line such as `IQ== 0`"
_CACHE_VARIABLES = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")


class TiktokenTokenizer(Tokenizer):
    """A `tiktoken.Encoding` behind our interface."""

    name = "TiktokenTokenizer"

    def __init__(self, encoding: Any, content: str) -> None:
        self._encoding, self._content = encoding, content

    @property
    def engine(self) -> str:
        return "tiktoken's engine"

    @property
    def vocab_size(self) -> int:
        return int(self._encoding.n_vocab)

    @property
    def eod(self) -> int:
        return int(self._encoding.eot_token)

    def fingerprint(self) -> str:
        return self._content

    def tokenize_packed(self, texts: Sequence[str]) -> TokenBatch:
        self.check_characters(texts)
        parts = list(map(self._encode_one, texts))
        lengths = np.array([part.size for part in parts], np.int64)
        return TokenBatch(np.concatenate(parts) if parts else np.empty(0, np.int64), lengths)

    def _encode_one(self, text: str) -> NDArray[np.int64]:
        try:
            found = self._encoding.encode_to_numpy(text, disallowed_special=())
        except (
            ValueError
        ) as error:  # its search of words has a limit, which a run of one kind meets
            raise TokenizerError(
                f"{self.name}: a text of {len(text):,} characters that begins {text[:40]!r} holds a run "
                f"too long for tiktoken ({error}): cut it, or leave it out"
            ) from error
        ids: NDArray[np.int64] = found.astype(np.int64)
        return ids

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._encoding.encode_ordinary(text) for text in texts]

    def _decode(self, ids: list[int]) -> str:
        return b"".join(map(self._bytes_of, ids)).decode("utf-8", errors="replace")

    def _bytes_of(self, index: int) -> bytes:
        try:
            data: bytes = self._encoding.decode_single_token_bytes(index)
        except KeyError:  # between the pieces and the special tokens some ids stand for nothing
            return "\ufffd".encode()
        return data


def tiktoken_tokenizer(vocab_file: str) -> TiktokenTokenizer:
    """The encoding that ``vocab_file`` names, from its file here or in tiktoken's cache.

    Raises:
        TokenizerError: there is no such encoding or file, or the file is broken.
    """
    tiktoken = importlib.import_module("tiktoken")
    path = Path(vocab_file)
    name = path.name.removesuffix(".tiktoken")
    data = b""

    def load(address: str, expected_hash: str | None = None) -> dict[bytes, int]:
        nonlocal data
        if path.is_file():
            data, source = read_bytes(path, _FILE), str(path)
        else:
            data, source = _cached(name, address, expected_hash)
        return _ranks(data, source)

    constructors = importlib.import_module("tiktoken_ext.openai_public").ENCODING_CONSTRUCTORS
    known = sorted(constructors)
    if name not in known or (path.parent.name and not path.is_file()):
        found = "is a file of no known name" if path.is_file() else "is no file, and no encoding"
        raise TokenizerError(
            f"vocab_file: {vocab_file} {found}; TiktokenTokenizer expects the name of an encoding "
            f"({', '.join(known)}), or a local file of that name with .tiktoken at its end"
        )
    try:
        encoding = tiktoken.Encoding(**_description(constructors, name, load))
    except (AssertionError, ValueError) as error:  # what tiktoken says of a vocabulary with holes
        raise TokenizerError(
            f"vocab_file: {vocab_file}: does not hold the pieces of {name}; expected {_FILE}"
        ) from error
    specials = repr(sorted(encoding._special_tokens.items())).encode()
    content = fingerprint(TiktokenTokenizer.name, data, encoding._pat_str.encode(), specials)
    return TiktokenTokenizer(encoding, content)


def _description(
    constructors: dict[str, FunctionType], name: str, load: Callable[..., dict[bytes, int]]
) -> dict[str, Any]:
    """What tiktoken says of an encoding, its pieces read by ``load`` instead of from the network.

    Its own functions run, with another reader under the name of theirs; tiktoken itself stays as it is.
    """

    def refuse(*_: object, **__: object) -> dict[bytes, int]:
        raise TokenizerError(f"{name}: use GPT2BPETokenizer with vocab.json and merges.txt instead")

    names: dict[str, Any] = {}
    for function in constructors.values():
        names.update(function.__globals__)
    names.update(load_tiktoken_bpe=load, data_gym_to_mergeable_bpe_ranks=refuse)
    for function in constructors.values():
        names[function.__name__] = FunctionType(function.__code__, names)
    description: dict[str, Any] = names[constructors[name].__name__]()
    return description


def _cached(name: str, address: str, expected_hash: str | None) -> tuple[bytes, str]:
    """The file of an encoding in tiktoken's cache, and its path there."""
    variable = next((v for v in _CACHE_VARIABLES if v in os.environ), None)
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ[variable] if variable else default
    key = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    path = Path(folder, key)
    data = path.read_bytes() if folder and path.is_file() else None
    if data is None or (expected_hash and hashlib.sha256(data).hexdigest() != expected_hash):
        found = "is not in" if data is None else "is damaged in"
        raise TokenizerError(
            f"vocab_file: {name}: {found} tiktoken's cache, and nothing is downloaded\n"
            f"  looked for: {path}\n"
            f"  to do: give vocab_file the path of {name}.tiktoken, or copy that file to this place "
            f"(or to the same name in the folder that {_CACHE_VARIABLES[0]} names)"
        )
    return data, str(path)


def _ranks(data: bytes, source: str) -> dict[bytes, int]:
    """Piece → rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(f"{source}, line {number}: expected {_FILE}") from error
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizerError(
            f"{source}: {len(missing)} of the 256 bytes are no pieces, such as {missing[0]}; "
            f"expected {_FILE}"
        )
    return ranks
