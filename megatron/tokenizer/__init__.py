"""Text ⇄ token ids. Knows nothing of models, data sets or ranks, and does not import torch."""

from megatron.tokenizer.abstract import TokenBatch, Tokenizer
from megatron.tokenizer.build import TOKENIZER_TYPES, build_tokenizer
from megatron.tokenizer.padding import padded_vocab_size

__all__ = [
    "TOKENIZER_TYPES",
    "TokenBatch",
    "Tokenizer",
    "build_tokenizer",
    "padded_vocab_size",
]
