"""Activations of the MLP, by their name in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def _unchanged(x: Tensor) -> Tensor:
    return x


# A gated activation is act(gate) x value (Shazeer, GLU Variants Improve Transformer, 2020); its row
# is the activation of the gate. Which ones are gated, the configuration knows: ModelArgs.is_gated.
_FUNCTIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "softsign": F.softsign,
    "swish": F.silu,
    "mish": F.mish,
    "silu": F.silu,
    "geglu": F.gelu,
    "reglu": F.relu,
    "swiglu": F.silu,
    "bilinear": _unchanged,
    "glu": torch.sigmoid,
}


def get_activation(name: str, *, tanh_gelu: bool = False) -> Activation:
    """The function by its name; of a gated activation, the one that is applied to the gate.

    Args:
        tanh_gelu: ``gelu`` and ``geglu`` in gelu's tanh form, which is what GPT-NeoX's fused kernel
            computes for ``gelu``, and what Gemma is made of.
    """
    function = _FUNCTIONS[name]
    return partial(F.gelu, approximate="tanh") if tanh_gelu and function is F.gelu else function
