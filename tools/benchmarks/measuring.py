"""What several measurements need: ranks on this machine, memory of this process, tensors that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from megatron.runtime.ports import free_port


def environments_of_ranks(count: int) -> list[dict[str, str]]:
    """What each rank of a world on this machine finds in its environment."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def own_memory(which: Literal["VmRSS", "VmHWM"]) -> int:
    """Bytes of memory that this process has now (``VmRSS``), or has had at most (``VmHWM``)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{which}:")[1].split()[0]) * 1024


@contextmanager
def kept_for_backward(model: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes of each storage that autograd keeps within the block, by address; weights are left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept
