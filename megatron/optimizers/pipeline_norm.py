"""The norm of the gradients of all pipeline stages under ZeRO, one collective for all of a stage's groups.

DeepSpeed 0.19's ZeRO takes the norm of each parameter group over all model-parallel ranks, to which the
stages of a pipeline belong. Stages hold different layers: one with nothing but the embedding has no
parameter that does not decay, so it has a group less, and the others would wait for it for ever.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# What ZeRO makes of a norm that is no number.
_NO_NUMBER = -1.0


def sum_norms_of_stages(optimizer: Any) -> None:
    """Make DeepSpeed's ZeRO ``optimizer`` take the norm of its stage first, then of all.

    An optimizer that takes its norm otherwise (or none) is left as it is.
    """
    of_all = getattr(optimizer, "scaled_global_norm", None)
    if of_all is None:
        return
    group = optimizer.model_parallel_group

    def of_all_stages(norm_type: int = 2) -> Tensor:
        optimizer.model_parallel_group = None
        try:
            norm: Tensor = of_all(norm_type=norm_type)
        finally:
            optimizer.model_parallel_group = group
        total = torch.where(norm < 0, torch.inf, norm.double().square())
        dist.all_reduce(total, group=group)
        norm = total.sqrt().to(norm.dtype)
        return torch.where(norm.isfinite(), norm, _NO_NUMBER)

    optimizer.scaled_global_norm = of_all_stages
