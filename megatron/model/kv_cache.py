"""Keys and values of the tokens that a model has already read, for generation.

A token's slot is its position in its own sequence: sequences of different lengths sit side by side,
each from slot 0 on, and a query at position p looks at slots 0 ... p of its row. What padding left in
later slots is never looked at, and is overwritten when the sequence gets there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megatron.mpu.groups import ParallelGroups
from megatron.mpu.layers import divide
from megatron.neox_arguments.sections import ModelArgs


class KVCache:
    """Storage for ``batch`` sequences of up to ``length`` tokens, for all layers of this rank.

    Args:
        model: the model's section of the configuration.
        batch: b sequences.
        length: t tokens a sequence.
        groups: the layout of ranks; each model-parallel rank stores its own heads.
        dtype, device: of the model's activations.
        layers: numbers of the transformer layers that this rank holds; None: all.
    """

    def __init__(
        self,
        model: ModelArgs,
        *,
        batch: int,
        length: int,
        groups: ParallelGroups,
        dtype: torch.dtype,
        device: torch.device,
        layers: range | None = None,
    ) -> None:
        ranks = groups.get_model_parallel_world_size() // groups.kv_replicas
        heads = divide(model.kv_heads, ranks, "the number of key/value heads")
        self._layers = range(model.num_layers) if layers is None else layers
        shape = (len(self._layers), 2, batch, heads, length, model.head_width)
        self.length = length
        # Whether a soft prompt has been put into the first slots.
        self.has_prompt = False
        self._store = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = torch.arange(batch, device=device)[:, None, None]
        self._heads = torch.arange(heads, device=device)[:, None]

    def extend(
        self, layer: int, keys: Tensor, values: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put new keys and values of one layer into their slots.

        Args:
            layer: number of the transformer layer, from 0 on.
            keys, values: [b, k, s, d].
            positions: [b, s] slots.

        Returns:
            All keys and values of the layer, [b, k, t, d]; those of unread slots mean nothing.
        """
        stored_keys, stored_values = self._store[layer - self._layers.start]
        slots = (self._rows, self._heads, positions.unsqueeze(1))
        stored_keys[slots] = keys
        stored_values[slots] = values
        return stored_keys, stored_values
