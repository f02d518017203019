"""OpenAI's encodings from local files; nothing is ever fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tiktoken_ext import openai_public
from tokenizers import pre_tokenizers

from megatron.errors import TokenizerError
from megatron.tokenizer import build_tokenizer
from megatron.tokenizer.byte_level import AWKWARD_TEXTS

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "gpt2"
BYTES = [bytes([byte]) for byte in range(256)]


def lines(pieces: list[bytes]) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(p), rank) for rank, p in enumerate(pieces))


def gpt2_pieces() -> list[bytes]:
    """GPT-2's pieces in the order of their ids, which are r50k_base's ranks."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(range(256, 512))
    byte_of = {chr(b) if chr(b) in alphabet else chr(next(others)): b for b in range(256)}
    vocab = json.loads((ASSETS / "vocab.json").read_text(encoding="utf-8"))
    names = sorted((n for n in vocab if n != "<|endoftext|>"), key=vocab.__getitem__)
    return [bytes(byte_of[character] for character in name) for name in names]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network is asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))


def test_a_local_file_gives_the_ids_of_the_same_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "r50k_base.tiktoken"
    path.write_bytes(lines(gpt2_pieces()))
    tokenizer = build_tokenizer("TiktokenTokenizer", str(path))
    gpt2 = build_tokenizer(
        "GPT2BPETokenizer", str(ASSETS / "vocab.json"), str(ASSETS / "merges.txt")
    )
    assert tokenizer.tokenize_batch(AWKWARD_TEXTS) == gpt2.tokenize_batch(AWKWARD_TEXTS)
    packed, expected = (t.tokenize_packed(AWKWARD_TEXTS) for t in (tokenizer, gpt2))
    assert packed.tokens.tolist() == expected.tokens.tolist()
    assert packed.lengths.tolist() == expected.lengths.tolist()
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.pad) == (50257, 50256, None)
    text = "<|endoftext|> é 日"
    assert tokenizer.detokenize([*tokenizer.tokenize(text), 50256]) == text + "<|endoftext|>"
    assert tokenizer.fingerprint() != gpt2.fingerprint()
    assert tokenizer.tokenize_packed([]).tokens.size == 0


def test_a_run_too_long_is_an_error_with_its_text(tmp_path: Path) -> None:
    path = tmp_path / "r50k_base.tiktoken"
    path.write_bytes(lines(gpt2_pieces()))
    tokenizer = build_tokenizer("TiktokenTokenizer", str(path))
    with pytest.raises(TokenizerError, match="a text of 3,000,001 characters that begins"):
        tokenizer.tokenize_packed([" " * 3_000_000 + "x"])


def test_ids_between_pieces_and_special_tokens(tmp_path: Path) -> None:
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(lines([*BYTES, b"ab"]))
    tokenizer = build_tokenizer("TiktokenTokenizer", str(path))
    assert tokenizer.tokenize("abé") == [256, 0xC3, 0xA9]
    assert (tokenizer.vocab_size, tokenizer.eod) == (100277, 100257)
    assert tokenizer.detokenize([256, 5000, 100257]) == "ab\ufffd<|endoftext|>"


def test_a_name_works_where_the_cache_has_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, address = lines([*BYTES, b"ab"]), "https://example.org/tiny.tiktoken"
    monkeypatch.setitem(globals(), "DATA", data)
    monkeypatch.setitem(openai_public.ENCODING_CONSTRUCTORS, "tiny", tiny)
    with pytest.raises(
        TokenizerError, match=r"tiny: is not in tiktoken's cache, and nothing is down"
    ):
        build_tokenizer("TiktokenTokenizer", "tiny")
    cached = tmp_path / "cache" / hashlib.sha1(address.encode()).hexdigest()
    cached.parent.mkdir()
    cached.write_bytes(data[:-1])
    with pytest.raises(TokenizerError, match=r"tiny: is damaged in tiktoken's cache"):
        build_tokenizer("TiktokenTokenizer", "tiny")
    cached.write_bytes(data)
    assert build_tokenizer("TiktokenTokenizer", "tiny").tokenize("ab") == [256]


DATA = b""


def tiny() -> dict[str, Any]:
    """As tiktoken describes its encodings."""
    ranks = load_tiktoken_bpe(  # type: ignore[name-defined]  # noqa: F821 - given by the code under test
        "https://example.org/tiny.tiktoken", expected_hash=hashlib.sha256(DATA).hexdigest()
    )
    specials = {"<|endoftext|>": 257}
    return {
        "name": "tiny",
        "pat_str": r"\w+|\W",
        "mergeable_ranks": ranks,
        "special_tokens": specials,
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "cl100k_base",
            None,
            r"cl100k_base: is not in tiktoken's cache, and nothing is downloaded",
        ),
        ("o200k_harmony", None, r"o200k_harmony: is not in tiktoken's cache"),
        ("gpt2", None, r"gpt2: use GPT2BPETokenizer"),
        ("no_base", None, r"no_base is no file, and no encoding; .* \(cl100k_base, gpt2"),
        ("x/cl100k_base", None, r"x/cl100k_base is no file"),
        ("own.tiktoken", b"IQ== 0\n", r"own\.tiktoken is a file of no known name"),
        ("cl100k_base.tiktoken", b"IQ== 0\n", r"255 of the 256 bytes are no pieces, such as 0"),
        ("cl100k_base.tiktoken", b"IQ== 0\nIQ==\n", r"cl100k_base\.tiktoken, line 2: expected"),
        ("r50k_base.tiktoken", lines(BYTES), r"does not hold the pieces of r50k_base"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        build_tokenizer("TiktokenTokenizer", name)
