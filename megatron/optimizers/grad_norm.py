"""The norm of all gradients and its clipping, for the one case in which DeepSpeed's do not serve.

Under ZeRO stage 0 in fp32 DeepSpeed tells no norm and steps with whatever it finds, NaN included; and
it clips by a norm that it sums over `mpu`'s model-parallel group, for which None means all ranks: the
norm is √(ranks) too large where nothing is split. So both are done here, between the last backward and
the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn


class ModelAxes(Protocol):
    """What is asked of the parallel layout."""

    def get_model_parallel_rank(self) -> int: ...
    def get_model_parallel_world_size(self) -> int: ...
    def get_model_parallel_group(self) -> dist.ProcessGroup | None: ...
    def get_pipe_parallel_world_size(self) -> int: ...
    def get_pipe_parallel_group(self) -> dist.ProcessGroup | None: ...


def global_grad_norm(parameters: Iterable[nn.Parameter], groups: ModelAxes) -> float:
    """L2 norm of the (already data-reduced) gradients of the whole model.

    A parameter that is the same on every model-parallel rank counts once: those that are sharded
    carry ``model_parallel = True``, all others are counted on model rank 0 only. So does one that two
    pipeline stages have a copy of: one copy carries ``ds_pipe_replicated = True``.
    """
    parameters = list(parameters)
    first = groups.get_model_parallel_rank() == 0
    grads = [
        p.grad
        for p in parameters
        if p.grad is not None
        and (first or getattr(p, "model_parallel", False))
        and not getattr(p, "ds_pipe_replicated", False)
    ]
    # In fp64 without a copy of the gradients: a sum of a million squares in fp32 is off in the sixth
    # digit, and by another amount for each way in which the tensors are sharded.
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in grads]
    # A rank may have nothing to count, such as a last stage of a norm and a copy of the embedding. Its 0
    # too must be where the collectives look for it.
    nothing = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    total = torch.stack([nothing, *norms]).square().sum()
    if groups.get_model_parallel_world_size() > 1:
        dist.all_reduce(total, group=groups.get_model_parallel_group())
    if groups.get_pipe_parallel_world_size() > 1:
        dist.all_reduce(total, group=groups.get_pipe_parallel_group())
    return float(total.sqrt())


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float, limit: float) -> None:
    """Scale gradients of the global ``norm`` down to ``limit``, as ZeRO does; 0 leaves them alone."""
    coefficient = limit / (norm + 1e-6)
    if limit == 0 or coefficient >= 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(coefficient)
