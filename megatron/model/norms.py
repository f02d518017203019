"""Normalisation of hidden states. Shapes: [..., h]. Half-precision inputs are normalised in fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron.neox_arguments.sections import ModelArgs


class LayerNorm(nn.Module):
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` (Ba et al., 2016)."""

    def __init__(self, width: int, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``; torch's kernel computes halves in fp32."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * scale`` (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``."""
        return F.rms_norm(x.float(), self.scale.shape, self.scale.float(), self.eps).to(x.dtype)


def build_norm(model: ModelArgs) -> nn.Module:
    """The norm that the configuration names, over ``hidden_size`` features."""
    if model.norm == "rmsnorm":
        return RMSNorm(model.hidden_size, model.rms_norm_epsilon)
    assert model.norm == "layernorm", model.norm
    return LayerNorm(model.hidden_size, model.layernorm_epsilon, model.use_bias_in_norms)
