"""Activation memory: options of DeepSpeed's and Megatron's recomputation that PyTorch's has no part for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from megatron.neox_arguments.typed import Ignored

_NO_SUCH_OPTION = Ignored("activations are recomputed by PyTorch, which has no such option")


@dataclass(frozen=True)
class RecomputationArgs:
    """What stands beside `checkpoint_activations` and `checkpoint_num_layers`, which work."""

    deepspeed_activation_checkpointing: Annotated[
        bool, Ignored("activations are recomputed by PyTorch")
    ] = True
    """Whether DeepSpeed's functions recompute, not Megatron's."""

    partition_activations: Annotated[bool, _NO_SUCH_OPTION] = False
    """Whether kept inputs are split over tensor-parallel ranks."""

    contiguous_checkpointing: Annotated[bool, _NO_SUCH_OPTION] = False
    """Whether kept inputs lie in one block of memory."""

    checkpoint_in_cpu: Annotated[bool, _NO_SUCH_OPTION] = False
    """Whether kept inputs move to the host."""

    synchronize_each_layer: Annotated[bool, _NO_SUCH_OPTION] = False
    """Whether the device is waited for after each layer."""

    profile_backward: Annotated[bool, _NO_SUCH_OPTION] = False
    """Whether backward passes are timed."""
