"""Tokenizers that the `tokenizers` library runs: a `tokenizer.json`, or GPT-2's pair of files.

Three kinds, as in GPT-NeoX:

- ``HFTokenizer``: a `tokenizer.json` as the library saves it. Its special tokens are found in the
  text; what its post-processor adds (a BOS, say) is added.
- ``GPT2BPETokenizer``: OpenAI's `vocab.json` and `merges.txt`. Byte-level BPE and nothing else: the
  string ``<|endoftext|>`` in a document is text like any other and can not end it.
- ``HFGPT2Tokenizer``: the same two files read the way of `transformers`: ``<|endoftext|>`` in a text
  is the special token, and ``<|padding|>`` is one more entry at the end of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from megatron.errors import TokenizerError
from megatron.tokenizer.abstract import TokenBatch, Tokenizer
from megatron.tokenizer.byte_level import FastBytePairs, NotFast, OtherIds, fast_engine
from megatron.tokenizer.long_texts import groups, may_be_cut, pieces
from megatron.tokenizer.vocab_files import fingerprint, parse_json_object, read_bytes

_TIKTOKEN = "tiktoken's engine"
# In this order the first that the vocabulary holds ends a document; GPT-NeoX knows the first only.
_EOD_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
_PAD_TOKENS = ("<|padding|>", "<pad>", "[PAD]")

_GPT2_VOCAB = 'a vocab.json of byte-level BPE, one object of token to id such as {"hello": 31373}'
_GPT2_MERGES = "a merges.txt of byte-level BPE, two pieces a line such as `Ġ t`"
_TOKENIZER_JSON = "a tokenizer.json as Hugging Face's tokenizers library saves it"


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer` behind our interface.

    Args:
        name: the ``tokenizer_type``.
        source: the file or files it was read from, for messages.
        engine: the library's object; it must neither cut nor pad.
        content: hash of the files.
    """

    def __init__(self, name: str, source: str, engine: tokenizers.Tokenizer, content: str) -> None:
        self.name = name
        self._source = source
        self._engine = engine
        self._content = content
        vocab: dict[str, int] = engine.get_vocab(with_added_tokens=True)
        if not vocab:
            raise TokenizerError(f"{source}: the vocabulary is empty")
        # Usually the number of entries; a vocabulary with holes must still be covered.
        self._vocab_size = max(vocab.values()) + 1
        self._eod = next((vocab[t] for t in _EOD_TOKENS if t in vocab), None)
        self._pad = next((vocab[t] for t in _PAD_TOKENS if t in vocab), None)
        self._may_be_cut: bool | None = None  # until the library encodes in bulk
        self._fast: FastBytePairs | None = None
        self._disproved = False
        self._engine_name: str | None = None  # until it is asked for: the proof takes a while

    @property
    def engine(self) -> str:
        if self._engine_name is None:
            self._engine_name = self._choose_engine(fast_engine)
        return self._engine_name

    @property
    def disproved(self) -> bool:
        return self._disproved

    def trust(self, engine: str | None) -> None:
        if engine is None or engine == _TIKTOKEN:
            engine = self._choose_engine(partial(FastBytePairs, proved=True))
        self._engine_name = engine

    def _choose_engine(self, make: Callable[[tokenizers.Tokenizer], FastBytePairs]) -> str:
        """Take the fast engine where ``make`` can; the name of what encodes in bulk from now on."""
        try:
            self._fast = make(self._engine)
        except NotFast as reason:
            self._disproved = isinstance(reason, OtherIds)
            return f"the tokenizers library ({reason})"
        return _TIKTOKEN

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def eod(self) -> int:
        if self._eod is None:
            raise TokenizerError(
                f"{self._source}: no end-of-document token in the vocabulary; looked for "
                f"{', '.join(_EOD_TOKENS)}: use a tokenizer that has one of them"
            )
        return self._eod

    @property
    def pad(self) -> int | None:
        return self._pad

    def fingerprint(self) -> str:
        return self._content

    def tokenize_packed(self, texts: Sequence[str]) -> TokenBatch:
        """As the base class, in little memory however long the texts are where that can be."""
        if not texts:
            return super().tokenize_packed(texts)
        _ = self.engine
        if self._fast is not None:
            self.check_characters(texts)
            return self._fast.encode(texts)
        if self._may_be_cut is None:
            self._may_be_cut = may_be_cut(self._engine)
        cut = [list(pieces(text)) if self._may_be_cut else [text] for text in texts]
        flat = [piece for of_text in cut for piece in of_text]
        parts = [super(HuggingFaceTokenizer, self).tokenize_packed(group) for group in groups(flat)]
        firsts = np.cumsum([0, *(len(of_text) for of_text in cut[:-1])])
        lengths = np.concatenate([part.lengths for part in parts])
        return TokenBatch(
            np.concatenate([part.tokens for part in parts]), np.add.reduceat(lengths, firsts)
        )

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        # The fast form leaves out character offsets and gives the same ids.
        return [encoding.ids for encoding in self._engine.encode_batch_fast(list(texts))]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._engine.decode(ids, skip_special_tokens=False)
        return text


def hf_tokenizer(vocab_file: Path) -> HuggingFaceTokenizer:
    """``HFTokenizer``: read a `tokenizer.json`.

    Raises:
        TokenizerError: the file cannot be read or is not a `tokenizer.json`.
    """
    data = read_bytes(vocab_file, _TOKENIZER_JSON)
    content = parse_json_object(data, vocab_file, _TOKENIZER_JSON)
    if not isinstance(content.get("model"), dict):  # a plain vocab.json may hold the word "model"
        raise TokenizerError(
            f"{vocab_file}: describes no model; expected {_TOKENIZER_JSON}. A plain vocab.json "
            "goes with GPT2BPETokenizer or HFGPT2Tokenizer and a merge_file"
        )
    try:
        engine = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"{vocab_file}: cannot be used as a tokenizer: {error}") from error
    # A file may carry the limits of the model it was made for; here they would cut documents.
    engine.no_truncation()
    engine.no_padding()
    name = "HFTokenizer"
    return HuggingFaceTokenizer(name, str(vocab_file), engine, fingerprint(name, data))


def gpt2_bpe_tokenizer(vocab_file: Path, merge_file: Path) -> HuggingFaceTokenizer:
    """``GPT2BPETokenizer``: OpenAI's byte-level BPE from `vocab.json` and `merges.txt`.

    Raises:
        TokenizerError: a file cannot be read or is not what it should be.
    """
    return _gpt2("GPT2BPETokenizer", vocab_file, merge_file, special_tokens=())


def hf_gpt2_tokenizer(vocab_file: Path, merge_file: Path) -> HuggingFaceTokenizer:
    """``HFGPT2Tokenizer``: GPT-2's `vocab.json` and `merges.txt`, read the way of `transformers`.

    Raises:
        TokenizerError: a file cannot be read or is not what it should be.
    """
    special_tokens = ("<|endoftext|>", "<|padding|>")
    return _gpt2("HFGPT2Tokenizer", vocab_file, merge_file, special_tokens=special_tokens)


def _gpt2(
    name: str, vocab_file: Path, merge_file: Path, *, special_tokens: tuple[str, ...]
) -> HuggingFaceTokenizer:
    vocab_data = read_bytes(vocab_file, _GPT2_VOCAB)
    merge_data = read_bytes(merge_file, _GPT2_MERGES)
    vocab = _parse_vocab(vocab_data, vocab_file)
    merges = _parse_merges(merge_data, merge_file, vocab, vocab_file)
    engine = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(list(special_tokens))
    content = fingerprint(name, vocab_data, merge_data)
    return HuggingFaceTokenizer(name, f"{vocab_file}, {merge_file}", engine, content)


def _parse_vocab(data: bytes, path: Path) -> dict[str, int]:
    """Token → id, checked to be a bijection that starts at 0 and to cover all 256 bytes."""
    vocab: dict[str, Any] = parse_json_object(data, path, _GPT2_VOCAB)
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < 2**31:
            raise TokenizerError(
                f"{path}: the entry {token!r} is {index!r}, not an id; expected {_GPT2_VOCAB}"
            )
    if len(set(vocab.values())) != len(vocab):
        raise TokenizerError(f"{path}: two tokens share one id; expected {_GPT2_VOCAB}")
    # Byte-level BPE drops in silence what it has no piece for.
    missing = [c for c in pre_tokenizers.ByteLevel.alphabet() if c not in vocab]
    if missing:
        raise TokenizerError(
            f"{path}: {len(missing)} of the 256 byte pieces are missing, such as "
            f"{min(missing)!r}; expected {_GPT2_VOCAB}"
        )
    return vocab


def _parse_merges(
    data: bytes, path: Path, vocab: dict[str, int], vocab_file: Path
) -> list[tuple[str, str]]:
    """The merges in order of rank, each checked against the vocabulary."""
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: is not UTF-8: {error}; expected {_GPT2_MERGES}") from error
    merges = []
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r")
        # The first line may be a version; `# #` further down is a merge like any other.
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pieces = line.split(" ")
        if len(pieces) != 2 or not all(pieces):
            raise TokenizerError(f"{path}, line {number}: {line[:80]!r}; expected {_GPT2_MERGES}")
        left, right = pieces
        unknown = next((p for p in (left, right, left + right) if p not in vocab), None)
        if unknown is not None:
            raise TokenizerError(
                f"{path}, line {number}: {unknown!r} is not in {vocab_file}: the two files do not "
                "belong together"
            )
        merges.append((left, right))
    if not merges:
        raise TokenizerError(f"{path}: holds no merges; expected {_GPT2_MERGES}")
    return merges
