"""Activations of the MLP, by their name in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]

_PLAIN: dict[str, Activation] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu, "swish": F.silu}

# act(gate) x value (Shazeer, GLU Variants Improve Transformer, 2020): the activation of the gate.
_GATED: dict[str, Activation] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}


def is_gated(name: str) -> bool:
    """Whether the activation multiplies two halves, so that the first layer is twice as wide."""
    return name in _GATED


def get_activation(name: str, *, tanh_gelu: bool = False) -> Activation:
    """The function by its name; of a gated activation, the one that is applied to the gate.

    Args:
        tanh_gelu: ``gelu`` by its tanh approximation, which is what GPT-NeoX's fused kernel computes.
    """
    function = _GATED[name] if is_gated(name) else _PLAIN[name]
    return partial(F.gelu, approximate="tanh") if tanh_gelu and function is F.gelu else function
