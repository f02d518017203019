"""Normalisation of hidden states. Shapes: [..., h]. Half-precision inputs are normalised in fp32.

With sequence parallelism each model-parallel rank normalises its own tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron.mpu.collectives import shared_parameters
from megatron.mpu.groups import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` (Ba et al., 2016)."""

    def __init__(
        self, width: int, eps: float, bias: bool = True, *, groups: ParallelGroups
    ) -> None:
        super().__init__()
        self.eps = eps
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``; torch's kernel computes halves in fp32."""
        if self.bias is None:
            (weight,), bias = shared_parameters(self.groups, self.weight), None
        else:
            weight, bias = shared_parameters(self.groups, self.weight, self.bias)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * scale`` (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.eps = eps
        self.groups = groups
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``."""
        (scale,) = shared_parameters(self.groups, self.scale)
        return F.rms_norm(x.float(), scale.shape, scale.float(), self.eps).to(x.dtype)


def build_norm(model: ModelArgs, *, groups: ParallelGroups) -> nn.Module:
    """The norm that the configuration names, over ``hidden_size`` features."""
    if model.norm == "rmsnorm":
        return RMSNorm(model.hidden_size, model.rms_norm_epsilon, groups=groups)
    assert model.norm == "layernorm", model.norm
    return LayerNorm(
        model.hidden_size, model.layernorm_epsilon, model.use_bias_in_norms, groups=groups
    )
