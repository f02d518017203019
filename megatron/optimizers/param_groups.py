"""Which parameters decay: matrices do; biases and norm weights, one of which is a matrix, do not."""

from __future__ import annotations

from typing import TypedDict

from torch import nn

from megatron.model.layout import decays
from megatron.runtime.partitioned import whole_shape


class ParamGroup(TypedDict):
    """One entry of the list that torch optimizers take."""

    params: list[nn.Parameter]
    weight_decay: float
    name: str


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[ParamGroup]:
    """Split the trainable parameters into those that decay and those that do not.

    Decay pulls weights towards 0, which is right for what multiplies activations and wrong for
    biases and for norm weights, whose neutral value is 1 (as in GPT-2 and GPT-NeoX). Both groups keep
    the model's order; empty groups are left out, since ZeRO cannot partition them.
    """
    decay: list[nn.Parameter] = []
    keep: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (decay if decays(name, whole_shape(parameter)) else keep).append(parameter)
    groups: list[ParamGroup] = [
        {"params": decay, "weight_decay": weight_decay, "name": "decay"},
        {"params": keep, "weight_decay": 0.0, "name": "no_decay"},
    ]
    return [group for group in groups if group["params"]]
