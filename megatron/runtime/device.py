"""The one file that knows accelerators: everything else asks here and runs on a CPU just as well."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from megatron.errors import LaunchError


def device_kind() -> str:
    """``cuda`` where an accelerator is visible and not switched off, else ``cpu``."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def local_device(local_rank: int) -> torch.device:
    """The device of the ``local_rank``-th process of this node, made current.

    Raises:
        LaunchError: this process sees fewer accelerators.
    """
    if device_kind() == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if local_rank >= visible:
        raise LaunchError(
            f"LOCAL_RANK={local_rank}, but this process sees {visible} GPU(s)\n"
            "  expected: one for each process of the node, numbered as their LOCAL_RANK\n"
            "  to do: start fewer processes (num_gpus), make all GPUs of the node visible to each of "
            "them (CUDA_VISIBLE_DEVICES; Slurm: --gpus-per-node, not --gpus-per-task), or set LOCAL_RANK "
            "where the launcher does not"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def default_backend() -> str:
    """The collectives' library for :func:`device_kind`."""
    return "nccl" if device_kind() == "cuda" else "gloo"


def chosen_backend(asked: str | None) -> str:
    """The collectives' library that the user has ``asked`` for, else the default one.

    Raises:
        LaunchError: it needs a device that is not there.
    """
    if asked == "nccl" and device_kind() == "cpu":
        raise LaunchError(
            "distributed_backend: nccl needs GPUs\n  found: none here (or DS_ACCELERATOR=cpu)\n"
            "  to do: leave distributed_backend out, which chooses by device, or set it to gloo",
            everywhere=True,
        )
    return asked or default_backend()


@lru_cache(maxsize=1)
def has_native_half_matmul() -> bool:
    """Whether this device multiplies bf16 matrices at speed.

    x86 CPUs without AVX512-BF16 or AMX emulate them 50 to 80 times slower than fp32; there the
    parallel layers cast to fp32, multiply, and cast the result back.
    """
    if device_kind() == "cuda":
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@contextmanager
def forked_generators() -> Iterator[None]:
    """Behind the block the default generators, of the CPU and of the current device, are as before."""
    devices = [torch.cuda.current_device()] if device_kind() == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def has_flash_attention(device: torch.device) -> bool:
    """Whether PyTorch's flash attention runs there; it wants compute capability 8.0."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def pins_memory(device: torch.device) -> bool:
    """Whether page-locked memory on the host speeds up copies to ``device``."""
    return device.type == "cuda"


def device_name(device: torch.device) -> str:
    """A name for people, such as ``NVIDIA H200`` or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory that this process has held: on the accelerator, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # ru_maxrss counts KiB on Linux.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def device_memory() -> list[tuple[str, int, int]]:
    """Name, bytes of memory and bytes that are free of every accelerator that is visible; none on a CPU."""
    found = []
    for number in range(torch.cuda.device_count() if device_kind() == "cuda" else 0):
        free, total = torch.cuda.mem_get_info(number)
        found.append((torch.cuda.get_device_name(number), total, free))
    return found
