"""A layer of a whole model, put together from what model-parallel ranks hold of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs


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
        split = layout.partition(model, name, [size * len(shards) for size in first.shape])
        joined = layout.join_shards([shard[name] for shard in shards], split)
        found.setdefault(layout.whole_name(name), []).append((split.first if split else 0, joined))
    return {
        name: torch.cat([tensor for _, tensor in sorted(parts, key=lambda part: part[0])])
        if len(parts) > 1
        else parts[0][1]
        for name, parts in found.items()
    }
