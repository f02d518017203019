"""Linear maps whose matrix is split over the model-parallel ranks, and what travels between ranks.

Shapes: b sequences, s tokens, i inputs, o outputs; ``size`` ranks. Hidden states are whole,
[b, s, i], or with sequence parallelism this rank's tokens, [b, s / size, i]. The split follows Shoeybi
et al., Megatron-LM (2019), section 3: a column-split map, then a row-split one, one sum between ranks.

On the way back what travels is hidden behind what is computed: the gradient of a column-split map's
input is summed over ranks while the gradient of its weight is computed. With sequence parallelism the
input is kept as this rank's tokens and gathered a second time, while the gradient of the input is
computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megatron.mpu.collectives import (
    PendingSequence,
    PendingSum,
    leave_parallel_region,
    shared_parameters,
)
from megatron.mpu.groups import ParallelGroups
from megatron.mpu.matmul import bias_gradient, input_gradient, linear, weight_gradient


def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None, groups: ParallelGroups) -> Tensor:
    """This rank's outputs for all tokens: [b, s, i] or [b, s / size, i] -> [b, s, o / size].

    Args:
        x: hidden states as they are between the parallel layers.
        weight: [o / size, i], this rank's rows.
        bias: [o / size], or None.
        groups: the layout of ranks.
    """
    if groups.get_model_parallel_world_size() == 1:
        return linear(x, weight, bias)
    out: Tensor = _ColumnLinear.apply(x, weight, bias, groups)  # type: ignore[no-untyped-call]
    return out


def row_linear(x: Tensor, weight: Tensor, bias: Tensor | None, groups: ParallelGroups) -> Tensor:
    """The sum of all ranks' products, plus ``bias``: [b, s, i / size] -> [b, s, o] or [b, s / size, o].

    Args:
        x: this rank's inputs of all tokens.
        weight: [o, i / size], this rank's columns.
        bias: [o], whole on every rank, or None.
        groups: the layout of ranks.
    """
    if groups.get_model_parallel_world_size() == 1:
        return linear(x, weight, bias)
    y = leave_parallel_region(linear(x, weight), groups)
    if bias is None:
        return y
    (bias,) = shared_parameters(groups, bias)
    return y + bias


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, groups: ParallelGroups
    ) -> Tensor:
        ctx.groups = groups
        ctx.save_for_backward(x, weight)
        whole = PendingSequence(x, groups).wait() if groups.sequence_parallel else x
        return linear(whole, weight, bias)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        groups = ctx.groups
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        # In this order on every rank: first the gathering, then the sum.
        gathering = (
            PendingSequence(x, groups) if groups.sequence_parallel and wants_weight else None
        )
        summing = PendingSum(input_gradient(grad, weight), groups) if wants_x else None
        grad_weight = grad_bias = None
        if wants_weight:
            whole = gathering.wait() if gathering is not None else x
            grad_weight = weight_gradient(grad, whole)
        if wants_bias:
            grad_bias = bias_gradient(grad)
        return summing.wait() if summing else None, grad_weight, grad_bias, None
