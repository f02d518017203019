"""Small models for tests."""

from __future__ import annotations

from typing import Any

import torch

from megatron.model import GPT2Model
from megatron.mpu import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.world import World

SINGLE = ParallelGroups(World())


def tiny_args(**changes: Any) -> ModelArgs:
    """Two layers, 32 wide, four heads of 8, sequences of 16."""
    shape = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 16,
        "max_position_embeddings": 16,
        "pos_emb": "rotary",
    }
    return ModelArgs(**{**shape, **changes})


def tiny_model(
    vocab: int = 64,
    *,
    seed: int = 7,
    groups: ParallelGroups = SINGLE,
    checkpoint_activations: bool = False,
    checkpoint_num_layers: int = 1,
    **changes: Any,
) -> GPT2Model:
    return GPT2Model(
        tiny_args(**changes),
        padded_vocab_size=vocab,
        groups=groups,
        seed=seed,
        checkpoint_activations=checkpoint_activations,
        checkpoint_num_layers=checkpoint_num_layers,
    )


@torch.no_grad()
def shake(model: torch.nn.Module, seed: int = 3) -> None:
    """Give every parameter random values of a size that matters: norms around 1, biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.empty(parameter.shape).normal_(0.0, 0.2, generator=generator)
        is_norm_weight = parameter.dim() == 1 and not name.endswith("bias")
        parameter.copy_(1.0 + noise if is_norm_weight else noise)
