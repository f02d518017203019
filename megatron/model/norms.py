"""Normalisation of hidden states, queries and keys. Half-precision inputs are normalised in fp32.

Shapes: h hidden, b sequences, s tokens, n heads of this rank, d features of a head. With sequence
parallelism each model-parallel rank normalises its own tokens. A norm's weights are used with
``norm_weight_offset`` added to them (1 in Gemma, whose stored weights are around 0).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron.mpu.collectives import (
    copy_to_model_parallel,
    reduce_from_model_parallel,
    shared_by_heads,
    shared_parameters,
)
from megatron.mpu.groups import ParallelGroups
from megatron.mpu.layers import divide, sharded
from megatron.neox_arguments.sections import ModelArgs


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * (offset + weight) + bias`` (Ba et al., 2016)."""
    # torch's kernel computes halves in fp32.
    return F.layer_norm(x, weight.shape, weight + offset if offset else weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * (offset + weight)`` (Zhang and Sennrich, 2019)."""
    return F.rms_norm(x.float(), weight.shape, weight.float() + offset, eps).to(x.dtype)


class LayerNorm(nn.Module):
    """:func:`layer_norm` over the last dimension."""

    def __init__(
        self,
        width: int,
        eps: float,
        bias: bool = True,
        *,
        offset: float = 0.0,
        groups: ParallelGroups,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``."""
        weight, bias = shared_parameters(self.groups, self.weight, self.bias)
        return layer_norm(x, weight, bias, self.eps, self.offset)


class NonParametricLayerNorm(nn.Module):
    """``(x - mean) / sqrt(variance + eps)``: a LayerNorm without weights, as in OLMo."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``."""
        return F.layer_norm(x, x.shape[-1:], None, None, self.eps)


class RMSNorm(nn.Module):
    """:func:`rms_norm` over the last dimension."""

    def __init__(
        self, width: int, eps: float, *, offset: float = 0.0, groups: ParallelGroups
    ) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.groups = groups
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``."""
        (scale,) = shared_parameters(self.groups, self.scale)
        return rms_norm(x, scale, self.eps, self.offset)


class ScaleNorm(nn.Module):
    """``g * x / max(|x|, eps)``: one length for all vectors (Nguyen and Salazar, 2019)."""

    def __init__(self, eps: float, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.eps = eps
        self.groups = groups
        self.g = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], in the type of ``x``."""
        (g,) = shared_parameters(self.groups, self.g)
        out: Tensor = F.normalize(x.float(), dim=-1, eps=self.eps) * g.float()
        return out.to(x.dtype)


def build_norm(model: ModelArgs, *, groups: ParallelGroups) -> nn.Module:
    """The norm that the configuration names, over ``hidden_size`` features."""
    width, eps, offset = model.hidden_size, model.norm_epsilon, model.norm_weight_offset
    if model.norm == "rmsnorm":
        return RMSNorm(width, eps, offset=offset, groups=groups)
    if model.norm == "scalenorm":
        return ScaleNorm(eps, groups=groups)
    if model.norm == "non_parametric_layernorm":
        return NonParametricLayerNorm(eps)
    return LayerNorm(width, eps, model.norm_has_bias, offset=offset, groups=groups)


class HeadNorm(nn.Module):
    """A norm of each head by itself, with weights that all heads share: Qwen3's, of queries or of keys.

    A model-parallel rank sees its own heads only: the gradients of all ranks are summed.
    """

    def __init__(self, model: ModelArgs, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.eps = model.norm_epsilon
        self.offset = model.norm_weight_offset
        self.is_rms = model.norm == "rmsnorm"
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(model.head_width))
        self.bias = nn.Parameter(torch.zeros(model.head_width)) if model.norm_has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[b, n, s, d] -> [b, n, s, d], in the type of ``x``."""
        weight, bias = shared_by_heads(self.groups, self.weight, self.bias)
        if self.is_rms:
            return rms_norm(x, weight, self.eps, self.offset)
        return layer_norm(x, weight, bias, self.eps, self.offset)


class AllHeadsNorm(nn.Module):
    """One LayerNorm over all heads of a token, with weights of [heads, d]: GPT-NeoX's.

    Where ranks share the heads, mean and variance are still those of all heads: what a model computes
    does not depend on the number of ranks.
    """

    def __init__(self, model: ModelArgs, *, groups: ParallelGroups) -> None:
        super().__init__()
        ranks = groups.get_model_parallel_world_size()
        heads = divide(model.num_attention_heads, ranks, "num_attention_heads")
        self.eps = model.norm_epsilon
        self.offset = model.norm_weight_offset
        self.groups = groups
        self.features = model.attention_width
        self.weight = sharded(heads, model.head_width)
        self.bias = sharded(heads, model.head_width) if model.norm_has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[b, n, s, d] -> [b, n, s, d], in the type of ``x``."""
        wide = x.float()
        centred = wide - self._mean(wide)
        out = centred * torch.rsqrt(self._mean(centred.square()) + self.eps)
        out = out * (self.weight.float() + self.offset).unsqueeze(1)
        if self.bias is not None:
            out = out + self.bias.float().unsqueeze(1)
        return out.to(x.dtype)

    def _mean(self, x: Tensor) -> Tensor:
        """Over the heads of all ranks: [b, n, s, d] -> [b, 1, s, 1]."""
        total = reduce_from_model_parallel(x.sum((1, 3), keepdim=True), self.groups)
        return copy_to_model_parallel(total, self.groups) / self.features


def build_query_key_norms(model: ModelArgs, *, groups: ParallelGroups) -> dict[str, nn.Module]:
    """Norms of queries and keys, by their names in the attention."""
    if model.qk_norm_kind == "head":
        return {name: HeadNorm(model, groups=groups) for name in ("q_norm", "k_norm")}
    if model.qk_norm_kind == "neox":
        return {"qk_layernorm": AllHeadsNorm(model, groups=groups)}
    return {}
