"""Which parameters decay, and which learn at a rate of their own.

Matrices decay; biases and norm weights, one of which is a matrix, do not. With a maximal update
parametrisation a matrix between two widths learns at the run's rate / r, and decays by r times as much,
where r is how many times as wide it is as the base model's.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, TypedDict

from torch import nn

from megatron.model import STANDARD, Parametrization
from megatron.model.layout import PARAMETER_NAMES, decays
from megatron.runtime.partitioned import whole_shape

# Of a group: what the run's learning rate is multiplied by, where that is not 1.
RATE_FACTOR = "rate_factor"


class _PlainGroup(TypedDict):
    params: list[nn.Parameter]
    weight_decay: float
    name: str


class ParamGroup(_PlainGroup, total=False):
    """One entry of the list that torch optimizers take."""

    rate_factor: float
    parameter_names: list[str]


def weight_decay_groups(
    model: nn.Module, weight_decay: float, parametrization: Parametrization = STANDARD
) -> list[ParamGroup]:
    """Split the trainable parameters by whether they decay, and by how fast they learn.

    Decay pulls weights towards 0, which is right for what multiplies activations and wrong for
    biases and for norm weights, whose neutral value is 1 (as in GPT-2 and GPT-NeoX). All groups keep
    the model's order; empty groups are left out, since ZeRO cannot partition them.
    """
    found: dict[tuple[bool, float], dict[str, nn.Parameter]] = {(True, 1.0): {}, (False, 1.0): {}}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = (decays(name, whole_shape(parameter)), parametrization.ratio(name))
            found.setdefault(kind, {})[name] = parameter
    groups = [
        _group(parameters, weight_decay if decaying else 0.0, ratio, decaying)
        for (decaying, ratio), parameters in found.items()
        if parameters
    ]
    if any(RATE_FACTOR in group for group in groups):
        for group, parameters in zip(groups, filter(None, found.values()), strict=True):
            group[PARAMETER_NAMES] = list(parameters)
    return groups


def _group(
    parameters: dict[str, nn.Parameter], weight_decay: float, ratio: float, decaying: bool
) -> ParamGroup:
    name = "decay" if decaying else "no_decay"
    group: ParamGroup = {
        "params": list(parameters.values()),
        "weight_decay": weight_decay,
        "name": name,
    }
    if ratio != 1.0:
        # The optimizer multiplies the decay by the group's rate: their product stays.
        group |= {
            "weight_decay": weight_decay * ratio,
            "name": f"{name}, {ratio:g} times as wide",
            "rate_factor": 1.0 / ratio,
        }
    return group


def set_learning_rate(groups: Iterable[MutableMapping[str, Any]], rate: float) -> None:
    """Give each of an optimizer's ``groups`` the run's ``rate``, times its own factor."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_FACTOR, 1.0)
