"""Keys about how GPT-NeoX computes, not what: here PyTorch's own kernels compute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import Ignored, NonNegativeInt, PositiveInt

_KERNELS = Ignored("kernels are PyTorch's own here, whatever is fused")
_LAYERS = Ignored("layers are PyTorch's own here, not Transformer Engine's")
_FP8 = Ignored("has a meaning with Transformer Engine only")


@dataclass(frozen=True)
class KernelArgs:
    """Fused kernels, Transformer Engine, and numerics that are fixed here."""

    scaled_upper_triang_masked_softmax_fusion: Annotated[bool, _KERNELS] = False
    """One kernel for scale, causal mask and softmax of attention scores."""

    scaled_masked_softmax_fusion: Annotated[bool, _KERNELS] = False
    """One kernel for scale, mask and softmax of attention scores."""

    bias_dropout_fusion: Annotated[bool, _KERNELS] = False
    """One kernel for bias, dropout and residual addition."""

    rope_fusion: Annotated[bool, _KERNELS] = False
    """One kernel for rotary positions."""

    layernorm_fusion: Annotated[bool, _KERNELS] = False
    """Apex's kernel for LayerNorm."""

    rmsnorm_fusion: Annotated[bool, _KERNELS] = False
    """Apex's kernel for RMSNorm."""

    use_flashattn_swiglu: Annotated[bool, _KERNELS] = False
    """The flash-attention package's kernel for `activation: swiglu`."""

    fused_kernels_build_path: Annotated[str | None, _KERNELS] = None
    """Folder in which GPT-NeoX compiles its kernels."""

    attention_softmax_in_fp32: Annotated[
        bool, Ignored("softmax is always computed in fp32", off=(True,))
    ] = False
    """Whether attention's softmax is computed in fp32."""

    fp16_lm_cross_entropy: Annotated[bool, Ignored("the loss is always computed in fp32")] = False
    """Whether the loss is computed in half precision."""

    apply_query_key_layer_scaling: Annotated[
        bool, Ignored("it guards fp16 softmax against overflow; scores here need no such guard")
    ] = False
    """Whether attention scores are scaled down by the number of the layer."""

    use_cpu_initialization: Annotated[
        bool, Ignored("weights are drawn the same way on every device")
    ] = False
    """Whether weights are drawn on the CPU."""

    rotary_save_freqs_buffer: Annotated[
        bool, Ignored("rotary frequencies are computed, not stored")
    ] = False
    """Whether rotary frequencies are written into checkpoints."""

    te_columnparallel: Annotated[bool, _LAYERS] = False
    """Transformer Engine's layer for weights split by columns."""

    te_rowparallel: Annotated[bool, _LAYERS] = False
    """Transformer Engine's layer for weights split by rows."""

    te_layernorm_mlp: Annotated[bool, _LAYERS] = False
    """Transformer Engine's LayerNorm and MLP in one."""

    te_mha: Annotated[bool, _LAYERS] = False
    """Transformer Engine's attention."""

    te_fp8_mha: Annotated[bool, _LAYERS] = False
    """Transformer Engine's attention in FP8."""

    te_fp8_format: Annotated[Literal["e4m3", "hybrid"], _FP8] = "hybrid"
    """FP8 format."""

    te_fp8_wgrad: Annotated[bool, _FP8] = True
    """Whether weight gradients are FP8."""

    te_fp8_amax_history_len: Annotated[PositiveInt, _FP8] = 1
    """Steps of history from which FP8 scales follow."""

    te_fp8_amax_compute_algo: Annotated[str, _FP8] = "most_recent"
    """How FP8 scales follow from their history."""

    te_fp8_margin: Annotated[NonNegativeInt, _FP8] = 0
    """Powers of two that FP8 scales leave free."""
