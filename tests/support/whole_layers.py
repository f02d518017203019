"""Whole layers from the parts of all model-parallel ranks: the inverse of what the model's layout cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megatron.model.layout import Partition, partition, whole_name
from megatron.neox_arguments.sections import ModelArgs


def join_shards(shards: Sequence[Tensor], split: Partition | None) -> Tensor:
    """What all ranks' parts, in rank order, are parts of: the inverse of ``take_shard``.

    Of copies the first counts. With ``split.first`` it is the whole tensor from there on.
    """
    if split is None or len(shards) == 1:
        return shards[0]
    parts = split.parts(len(shards))
    shards = shards[:: len(shards) // parts]
    widths = [piece // parts for piece in split.pieces]
    by_rank = [torch.split(shard, widths, dim=split.dim) for shard in shards]
    return torch.cat(
        [part for piece in zip(*by_rank, strict=True) for part in piece], dim=split.dim
    )


def join_layer(model: ModelArgs, shards: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A whole layer from all model-parallel ranks' parts of it, in rank order.

    Args:
        model: the model's section of the configuration.
        shards: each rank's tensors by their names inside the layer.

    Returns:
        Whole tensors by the names that they have without model parallelism.
    """
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for name, first in shards[0].items():
        split = partition(model, name, [size * len(shards) for size in first.shape])
        joined = join_shards([shard[name] for shard in shards], split)
        found.setdefault(whole_name(name), []).append((split.first if split else 0, joined))
    return {
        name: torch.cat([tensor for _, tensor in sorted(parts, key=lambda part: part[0])])
        if len(parts) > 1
        else parts[0][1]
        for name, parts in found.items()
    }
