"""Protects the choice of device and backend: what is not there is said in the user's words."""

from __future__ import annotations

import pytest
import torch

from megatron.errors import LaunchError
from megatron.runtime.device import chosen_backend, has_flash_attention, local_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine that seems to have two; the devices that were made current."""
    current: list[int] = []
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_a_cpu_takes_gloo_and_refuses_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert chosen_backend(None) == chosen_backend("gloo") == "gloo"
    assert local_device(5) == torch.device("cpu")
    with pytest.raises(LaunchError, match="nccl needs GPUs") as caught:
        chosen_backend("nccl")
    assert caught.value.everywhere


def test_each_process_of_a_node_has_its_gpu(two_gpus: list[int]) -> None:
    assert chosen_backend(None) == chosen_backend("nccl") == "nccl"
    assert chosen_backend("gloo") == "gloo"
    assert local_device(1) == torch.device("cuda", 1)
    with pytest.raises(LaunchError, match=r"LOCAL_RANK=2, but this process sees 2 GPU"):
        local_device(2)
    assert two_gpus == [1]


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((10, 0), True)])
def test_flash_attention_wants_a_recent_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_flash_attention(torch.device("cuda", 0)) is has
    assert not has_flash_attention(torch.device("cpu"))
