"""Model families beside the dense decoder: attention's alternatives, shared layers, soft prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from megatron.neox_arguments.typed import (
    Ignored,
    PositiveInt,
    Refused,
)

_NOT_YET = Refused("not supported yet: take it out", off=(0,))
_WITH_GMLP = Ignored("has a meaning with attention_config: gmlp only")
_WITH_MAMBA = Ignored("has a meaning with attention_config: mamba only")
_WITH_RWKV = Ignored("has a meaning with attention_config: rwkv only")


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors in front of each sample (Lester et al., 2021).

    Attributes:
        num_tokens: how many.
        init_string: a text whose embeddings they start as; empty: none.
        init_range: they start between minus and plus this.
    """

    num_tokens: int = 10
    init_string: str = ""
    init_range: float = 0.5


@dataclass(frozen=True)
class VariantArgs:
    """What takes the place of full attention, or of layers of their own."""

    sparsity_config: Annotated[dict[str, Any] | None, _NOT_YET] = None
    """Blocks of DeepSpeed's sparse attention."""

    num_unique_layers: Annotated[PositiveInt | None, _NOT_YET] = None
    """Layers with weights of their own; the others share them."""

    param_sharing_style: Annotated[str, Ignored("has a meaning with num_unique_layers only")] = (
        "grouped"
    )
    """Which layers share their weights."""

    soft_prompt_tuning: dict[str, Any] | None = None
    """Train vectors in front of each sample, and nothing else: `{enabled: true, num_tokens: 10, init_string:
    "", init_range: 0.5}`, so many vectors, which start as the embeddings of a text or, without one, evenly
    spread over plus and minus the range. Samples keep all their tokens and labels: the vectors come on top
    of `seq_length` and predict nothing. Start from a model with `finetune: true`."""

    output_layer_parallelism: Annotated[Literal["column"], Refused("only column")] = "column"
    """How the output layer is split over `model_parallel_size`."""

    gmlp_attn_dim: Annotated[PositiveInt, _WITH_GMLP] = 64
    """Width of the small attention in `amlp` layers."""

    mamba_selective_scan_fusion: Annotated[bool, _WITH_MAMBA] = False
    """One kernel for the selective scan."""

    mamba_causal_conv_fusion: Annotated[bool, _WITH_MAMBA] = False
    """One kernel for the causal convolution."""

    mamba_inner_func_fusion: Annotated[bool, _WITH_MAMBA] = False
    """One kernel for the whole inner function."""

    mamba_selective_fp32_params: Annotated[bool, _WITH_MAMBA] = True
    """Whether the parameters A and D stay in fp32."""

    mamba_use_bias_in_conv: Annotated[bool, _WITH_MAMBA] = True
    """Whether the convolution has a bias."""

    mamba_use_bias_in_linears: Annotated[bool, _WITH_MAMBA] = False
    """Whether the linear layers have biases."""

    dim_att: Annotated[PositiveInt | None, _WITH_RWKV] = None
    """Width of the time mixing. Default: `hidden_size`."""

    head_size: Annotated[PositiveInt | None, _WITH_RWKV] = None
    """Width of one head of the time mixing."""

    ffn_dim: Annotated[PositiveInt | None, _WITH_RWKV] = None
    """Width of the channel mixing."""

    @property
    def soft_prompt(self) -> SoftPrompt | None:
        """`soft_prompt_tuning` where it is switched on."""
        group = dict(self.soft_prompt_tuning or {})
        return SoftPrompt(**group) if group.pop("enabled", False) else None
