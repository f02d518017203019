"""A small configuration that is valid, for tests to change."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs


def small(**changes: Any) -> dict[str, Any]:
    """A tiny decoder in fp32; ``changes`` replace keys, and those that are ``...`` are taken out."""
    config: dict[str, Any] = {
        "pipe_parallel_size": 0,
        "model_parallel_size": 1,
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 8,
        "max_position_embeddings": 8,
        "pos_emb": "rotary",
        "no_weight_tying": True,
        "attention_config": [[["global"], 2]],
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1.0e-8}},
        "min_lr": 0.0001,
        "lr_decay_style": "cosine",
        "warmup": 0.0,
        "lr_decay_iters": 6,
        "zero_optimization": {"stage": 0},
        "precision": "fp32",
        "train_micro_batch_size_per_gpu": 2,
        "train_iters": 3,
        "data_impl": "mmap",
        "data_path": "out/c_text_document",
        "split": "1,0,0",
        "tokenizer_type": "HFTokenizer",
        "vocab_file": "tok.json",
        "checkpoint_factor": 3,
        "save": "ckpt",
        "load": "ckpt",
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def refusal(**changes: Any) -> str:
    """What a user reads when :func:`small` with ``changes`` is refused."""
    with pytest.raises(ConfigError) as error:
        NeoXArgs.from_dict(small(**changes))
    return str(error.value)
