"""Recomputation of activations, and where the one thing lies that it keeps: the input of some layers.

A group of layers runs forward without keeping what is inside; the backward pass computes it again from
the group's input. That input is kept whole on the device, or

- split: all tensor-parallel ranks hold the same hidden states, so each keeps its part and the backward
  pass gathers them (Rajbhandari et al., ZeRO, 2020, section 6.1). With sequence parallelism a rank holds
  nothing but its part to begin with, and nothing changes;
- in the host's memory, page-locked where that speeds up copies, and comes back for the backward pass.

Either way the same numbers come back, so neither changes a result. What is given up: a collective, or
two copies over the bus, for each group of layers and micro-batch.

Shapes: b sequences, s tokens, h hidden; n = b * s * h numbers of an input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from megatron.mpu.collectives import gather_parts, own_part
from megatron.mpu.groups import ParallelGroups
from megatron.runtime.device import pins_memory

# What is kept, and the shape and device of what it stands for.
_Packed: TypeAlias = tuple[Tensor, torch.Size, torch.device]


@dataclass(frozen=True)
class KeptInputs:
    """Where inputs of recomputed layers lie between the forward and the backward pass.

    Attributes:
        groups: the layout of ranks.
        partition: each tensor-parallel rank keeps its part.
        on_host: they lie in the host's memory. On a CPU that is a copy within it.
    """

    groups: ParallelGroups
    partition: bool = False
    on_host: bool = False

    def recomputed(self, layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``layers(x)`` [b, s, h] -> [b, s, h], of which nothing but ``x`` is kept for the backward pass.

        All ranks of a tensor-parallel group call this, and go backward through it, in the same order.
        """
        if not (self._splits or self.on_host):
            return self._checkpoint(layers, x)
        # torch saves the input under the hooks that hold outside of the recomputed part.
        with saved_tensors_hooks(self._pack, self._unpack):
            return self._checkpoint(layers, x)

    @staticmethod
    def _checkpoint(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        # torch stores the generator's state and restores it: dropout draws the same numbers.
        out: Tensor = checkpoint(layers, x, use_reentrant=False)
        return out

    @property
    def _splits(self) -> bool:
        several = self.groups.get_model_parallel_world_size() > 1
        return self.partition and several and not self.groups.sequence_parallel

    def _pack(self, x: Tensor) -> _Packed:
        kept = own_part(x, self.groups) if self._splits else x
        if self.on_host:
            there = torch.empty(kept.shape, dtype=x.dtype, pin_memory=pins_memory(x.device))
            # The way back waits for this one: both are in the order of one stream.
            there.copy_(kept, non_blocking=True)
            kept = there
        return kept, x.shape, x.device

    def _unpack(self, packed: _Packed) -> Tensor:
        kept, shape, device = packed
        if self.on_host:
            kept = kept.to(device, non_blocking=True)
        return gather_parts(kept, shape, self.groups) if self._splits else kept
