"""Activations of the MLP, by their name in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]

# A gated activation is act(gate) x value (Shazeer, GLU Variants Improve Transformer, 2020); its row
# is the activation of the gate. Which ones are gated, the configuration knows: ModelArgs.is_gated.
_FUNCTIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
}


def get_activation(name: str, *, tanh_gelu: bool = False) -> Activation:
    """The function by its name; of a gated activation, the one that is applied to the gate.

    Args:
        tanh_gelu: ``gelu`` in its tanh form, which is what GPT-NeoX's fused kernel computes.
    """
    function = _FUNCTIONS[name]
    return partial(F.gelu, approximate="tanh") if tanh_gelu and function is F.gelu else function
