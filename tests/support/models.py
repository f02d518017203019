"""Small models for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megatron.model import STANDARD, GPT2Model, Parametrization, layout
from megatron.mpu import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.neox_arguments.sections.variants import SoftPrompt
from megatron.runtime.world import World
from tests.support.tiny import TINY_SHAPE

SINGLE = ParallelGroups(World())


def tiny_args(**changes: Any) -> ModelArgs:
    """The model's section of a tiny run, and ``changes``."""
    return ModelArgs(**{**TINY_SHAPE, **changes})


def tiny_model(
    vocab: int = 64,
    *,
    seed: int = 7,
    groups: ParallelGroups = SINGLE,
    checkpoint_activations: bool = False,
    checkpoint_num_layers: int = 1,
    partition_activations: bool = False,
    checkpoint_in_cpu: bool = False,
    parametrization: Parametrization = STANDARD,
    soft_prompt: SoftPrompt | None = None,
    **changes: Any,
) -> GPT2Model:
    return GPT2Model(
        tiny_args(**changes),
        padded_vocab_size=vocab,
        groups=groups,
        seed=seed,
        checkpoint_activations=checkpoint_activations,
        checkpoint_num_layers=checkpoint_num_layers,
        partition_activations=partition_activations,
        checkpoint_in_cpu=checkpoint_in_cpu,
        parametrization=parametrization,
        soft_prompt=soft_prompt,
    )


def off_by(
    mine: Mapping[str, Tensor],
    whole: Mapping[str, Tensor],
    groups: ParallelGroups,
    model: ModelArgs,
) -> dict[str, float]:
    """How far each gradient is from this rank's part of the whole one, in parts of the largest."""
    rank, size = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    off, seen = {}, set()
    for name, gradient in mine.items():
        _, number, inside = name.split(".", 2)
        whole_name = f"sequential.{number}.{layout.whole_name(inside)}"
        expected = whole[whole_name]
        seen.add(whole_name)
        split = layout.partition(model, inside, expected.shape)
        part = layout.take_shard(expected, split, rank, size)
        assert part.shape == gradient.shape, name
        off[name] = (gradient - part).abs().max().item() / expected.abs().max().item()
    assert seen == whole.keys()
    return off


@torch.no_grad()
def shake(model: torch.nn.Module, seed: int = 3) -> None:
    """Give every parameter random values of a size that matters: norms around 1, biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.empty(parameter.shape).normal_(0.0, 0.2, generator=generator)
        is_norm_weight = parameter.dim() == 1 and not name.endswith("bias")
        parameter.copy_(1.0 + noise if is_norm_weight else noise)
