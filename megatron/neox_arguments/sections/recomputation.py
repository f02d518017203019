"""Activation memory: where the inputs of recomputed layers lie, and options that nothing here needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from megatron.neox_arguments.typed import Ignored

_ALLOCATOR = Ignored("PyTorch's allocator keeps blocks of equal size together")
_NO_TIMERS = Ignored(
    "activations are recomputed by PyTorch, which neither waits nor takes the time"
)


@dataclass(frozen=True)
class RecomputationArgs:
    """What stands beside `checkpoint_activations` and `checkpoint_num_layers`, which work."""

    deepspeed_activation_checkpointing: Annotated[
        bool, Ignored("activations are recomputed by PyTorch")
    ] = True
    """Whether DeepSpeed's functions recompute, not Megatron's."""

    partition_activations: bool = False
    """With `checkpoint_activations`: tensor-parallel ranks split the inputs that are kept, and gather them
    in the backward pass. With `sequence_parallel` they are split already."""

    contiguous_checkpointing: Annotated[bool, _ALLOCATOR] = False
    """Whether kept inputs lie in one block of memory."""

    checkpoint_in_cpu: bool = False
    """With `checkpoint_activations`: the inputs that are kept lie in the host's memory until the backward
    pass."""

    synchronize_each_layer: Annotated[bool, _NO_TIMERS] = False
    """Whether the device is waited for after each layer."""

    profile_backward: Annotated[bool, _NO_TIMERS] = False
    """Whether backward passes are timed."""
