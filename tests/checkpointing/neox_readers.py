"""A run that reads a folder of GPT-NeoX's, in processes of its own or in this one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megatron.model.stages import logits_everywhere
from megatron.mpu.collectives import gather_from_model_parallel
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.checkpointing.neox_writer import KEYS
from tests.conversion.hf_models import VOCAB


@dataclass(frozen=True)
class Reading:
    """A folder, and the layout in which it is read."""

    root: Path
    case: str
    model: int = 1
    pipe: int = 0


def config_of(reading: Reading, **changes: Any) -> dict[str, Any]:
    """What a user would write; ``tokenizer.json`` lies beside the folder."""
    return {
        **KEYS[reading.case],
        "tokenizer_type": "HFTokenizer",
        "vocab_file": str(reading.root.parent / "tokenizer.json"),
        "model_parallel_size": reading.model,
        "pipe_parallel_size": reading.pipe,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
        "distributed_backend": "gloo",
        "load": str(reading.root),
        **changes,
    }


def logits_of(
    world: World, readings: list[Reading], tokens: NDArray[np.int64]
) -> list[NDArray[np.float32]]:
    """The logits [b, s, v] of ``tokens`` [b, s] of each reading's model."""
    found = []
    for reading in readings:
        args = NeoXArgs.from_dict(config_of(reading), world_size=world.size)
        parts = build_parts(args, world)
        model, _ = load_trained_model(args, parts)
        with torch.no_grad():
            mine = logits_everywhere(model, torch.from_numpy(tokens))
        found.append(gather_from_model_parallel(mine, parts.groups)[..., :VOCAB].numpy())
    return found
