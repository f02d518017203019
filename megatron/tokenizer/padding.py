"""Vocabulary size of the model: the tokenizer's, rounded up so that it divides well."""

from __future__ import annotations


def padded_vocab_size(vocab_size: int, divisible_by: int, model_parallel_size: int = 1) -> int:
    """``vocab_size`` rounded up to a multiple of ``divisible_by × model_parallel_size``.

    As in GPT-NeoX, so that embedding shapes agree. The added rows never occur in data and are never
    sampled.
    """
    for name, value in (
        ("vocab_size", vocab_size),
        ("divisible_by", divisible_by),
        ("model_parallel_size", model_parallel_size),
    ):
        if value < 1:
            raise ValueError(f"{name} is {value}, not a whole number from 1 on")
    multiple = divisible_by * model_parallel_size
    return -(-vocab_size // multiple) * multiple
