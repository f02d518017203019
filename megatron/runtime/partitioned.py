"""Parameters of which each data-parallel rank holds a part: ZeRO stage 3.

DeepSpeed empties such a parameter (its shape is [0]), remembers what it was and gathers it around the
forward and backward pass of the module that owns it. Whoever looks at one outside of these asks here.

Facts of DeepSpeed 0.19: a partitioned parameter has the attributes ``ds_shape`` and ``ds_numel``; a
module that reads a parameter of another one must be registered with it, or the parameter is gathered
for the length of the whole model's pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatron.runtime.stock_deepspeed import deepspeed


def is_partitioned(parameter: Tensor) -> bool:
    """Whether this rank holds only a part of ``parameter``."""
    return hasattr(parameter, "ds_shape")


def whole_shape(parameter: Tensor) -> torch.Size:
    """The shape that ``parameter`` has, or would have if it were here."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def whole_numel(parameter: Tensor) -> int:
    """The numbers in ``parameter``, here or elsewhere."""
    return math.prod(whole_shape(parameter))


@contextmanager
def gathered(parameters: Iterable[nn.Parameter], *, changes: bool = False) -> Iterator[None]:
    """Within the block ``parameters`` are whole here. Nothing is done for those that always are.

    All ranks that hold a part call this, for the same parameters in the same order, and must reach the
    end of the block.

    Args:
        parameters: at most as many as fit beside everything else, such as those of one layer.
        changes: the block writes to them; what the first data-parallel rank wrote is kept.
    """
    with deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=0 if changes else None):
        yield


def partitioner(
    deepspeed_config: dict[str, Any], groups: Any, dtype: torch.dtype
) -> Callable[[nn.Module], None]:
    """A function that leaves to each data-parallel rank its part of a module's parameters.

    All data-parallel ranks call it with modules that are made alike; the first one's numbers count.

    Args:
        deepspeed_config: of the engine that will train the module.
        groups: the parallel layout, as DeepSpeed's ``mpu``.
        dtype: type in which the parameters compute.
    """

    def partition(module: nn.Module) -> None:
        module.to(dtype)
        deepspeed.zero.Init(
            module=module,
            data_parallel_group=groups.get_data_parallel_group(),
            config_dict_or_path=deepspeed_config,
            mpu=groups,
        )

    return partition


def register_borrowed(borrower: nn.Module, parameter: nn.Parameter) -> None:
    """Have ``parameter``, which another module owns, gathered around ``borrower`` too."""
    if is_partitioned(parameter):
        deepspeed.zero.register_external_parameter(borrower, parameter)


def rank_among_holders(parameter: Tensor) -> int:
    """This rank's number among those that share out a partitioned ``parameter``."""
    return dist.get_rank(parameter.ds_process_group)  # type: ignore[attr-defined]


def is_first_holder(parameters: Iterable[Tensor]) -> bool:
    """Whether this rank is the first of those that share out partitioned ``parameters``."""
    return all(rank_among_holders(parameter) == 0 for parameter in parameters)
