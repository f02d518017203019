"""A corpus, a configuration and a run that take tenths of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder

BYTES = 256  # ids of the byte-level tokenizer that stand for text
# Two layers, 32 wide, four heads of 8, sequences of 16.
TINY_SHAPE: Final = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 16,
    "max_position_embeddings": 16,
    "pos_emb": "rotary",
}


def write_tokens(
    prefix: Path, *, documents: int = 60, length: int = 90, seed: int = 0, vocab: int = BYTES
) -> None:
    """Documents of random ids below ``vocab``, of ``length`` tokens give or take a third."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", np.uint16)
    for _ in range(documents):
        size = int(rng.integers(length * 2 // 3, length * 4 // 3))
        builder.add_item(rng.integers(0, vocab, size).astype(np.uint16))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def tiny_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run of 20 steps of a two-layer model on the tokens in ``folder``, global batch 8."""
    config: dict[str, Any] = {
        **TINY_SHAPE,
        "no_weight_tying": True,
        "tokenizer_type": "CharLevelTokenizer",
        "data_path": str(folder / "data" / "tiny"),
        "data_impl": "mmap",
        "split": "80,10,10",
        "num_workers": 0,
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "train_iters": 20,
        "eval_interval": 10,
        "eval_iters": 2,
        "log_interval": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8}},
        "zero_optimization": {"stage": 1},
        "precision": "fp32",
        "gradient_clipping": 1.0,
        "weight_decay": 0.1,
        "lr_decay_style": "cosine",
        "min_lr": 0.001,
        "warmup": 0.1,
        "save": str(folder / "checkpoints"),
        "load": str(folder / "checkpoints"),
        "distributed_backend": "gloo",
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not None}


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``metrics.jsonl``."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def series(folder: Path, name: str) -> list[float]:
    """One metric of a run, in the order of its steps."""
    return [row[name] for row in metrics(folder) if name in row]
