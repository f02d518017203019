"""Matrix products in half precision, also on CPUs that cannot multiply half-precision matrices.

Such CPUs emulate bf16 products 50 to 80 times slower than fp32 ones. There, operands are cast to
fp32, multiplied, and the result is cast back: the same rounding as a device that accumulates in fp32,
at nearly the speed of fp32. What is kept for the backward pass stays in half precision.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron.runtime.device import has_native_half_matmul

_HALF = (torch.bfloat16, torch.float16)


def needs_fp32_kernels(x: Tensor) -> bool:
    """Whether products of ``x`` go through fp32 on this machine."""
    return x.dtype in _HALF and x.device.type == "cpu" and not has_native_half_matmul()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: [..., i], [o, i], [o] -> [..., o], in the type of ``x``."""
    if needs_fp32_kernels(x):
        y: Tensor = _LinearThroughFp32.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return y
    return F.linear(x, weight, bias)


def input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """Of :func:`linear`: [..., o], [o, i] -> [..., i]."""
    if needs_fp32_kernels(grad):
        return (grad.float() @ weight.float()).to(grad.dtype)
    return grad @ weight


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Of :func:`linear`: [..., o], [..., i] -> [o, i]."""
    rows, inputs = grad.reshape(-1, grad.size(-1)), x.reshape(-1, x.size(-1))
    if needs_fp32_kernels(grad):
        return (rows.float().t() @ inputs.float()).to(grad.dtype)
    return rows.t() @ inputs


def bias_gradient(grad: Tensor) -> Tensor:
    """Of :func:`linear`: [..., o] -> [o], summed in fp32."""
    return grad.reshape(-1, grad.size(-1)).sum(0, dtype=torch.float32).to(grad.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention: query [b, n, s, d], key and value [b, kv, t, d] -> [b, n, s, d].

    Args:
        mask: [b or 1, n or 1, s, t], bool, true where a query may look, or in the type of the products what
            is added to scores; not together with ``causal``.
        causal: query i looks at keys 0 ... i (s = t).
        dropout: probability with which an attention weight is dropped.
        scale: what products of queries and keys are multiplied by; None: 1 / sqrt(d).

    With fewer key/value heads than query heads (kv divides n), each serves n / kv of them in order.
    """
    assert mask is None or not causal, "a mask and causal=True exclude each other"
    kind = query.dtype
    if needs_fp32_kernels(query):
        query, key, value = query.float(), key.float(), value.float()
    grouped = query.size(1) != key.size(1)
    if grouped and not _groups_are_fused(query, mask):
        repeats = query.size(1) // key.size(1)
        key, value = repeat_heads(key, repeats), repeat_heads(value, repeats)
        grouped = False
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return out.to(kind)


def repeat_heads(x: Tensor, repeats: int) -> Tensor:
    """Each head ``repeats`` times in a row: [b, kv, t, d] -> [b, kv * repeats, t, d]."""
    return x.repeat_interleave(repeats, dim=1)


def _groups_are_fused(query: Tensor, mask: Tensor | None) -> bool:
    """Whether a fused kernel shares key/value heads by itself.

    On accelerators only the flash kernel does, which takes half types and no mask; with anything else
    PyTorch would fall back to its plain kernel and hold all s x t scores.
    """
    return query.device.type == "cpu" or (mask is None and query.dtype != torch.float32)


class _LinearThroughFp32(torch.autograd.Function):
    """A linear map whose three products (forward, input and weight gradient) run in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(
            x.dtype
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grad, weight)
        if ctx.needs_input_grad[1]:
            grad_weight = weight_gradient(grad, x)
        if ctx.needs_input_grad[2]:
            grad_bias = bias_gradient(grad)
        return grad_x, grad_weight, grad_bias
