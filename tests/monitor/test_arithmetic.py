"""Arithmetic of a token equals sums that were made by hand; devices are known by their names."""

from __future__ import annotations

from megatron.monitor.arithmetic import flops_per_token, model_flops_utilization, peak_flops


def test_flops_and_mfu() -> None:
    flops = flops_per_token(
        matmul_parameters=1_000_000, num_layers=4, attention_width=128, seq_length=256
    )
    assert flops == 6e6 + 12 * 4 * 128 * 256
    assert model_flops_utilization(1e6, 9.89e8, 2, peak_flops("NVIDIA H200")) == 0.5
    assert model_flops_utilization(1e6, 9.89e8, 2, peak_flops("cpu")) is None
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
