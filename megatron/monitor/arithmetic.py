"""How much arithmetic a token costs, and which share of what its devices could do a run uses."""

from __future__ import annotations

# Dense bf16 peak of one device in FLOP/s, by a part of its name; the makers' data sheets, without
# sparsity. The first match counts.
_PEAK_FLOPS = (
    ("B200", 2250e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
)


def flops_per_token(
    *, matmul_parameters: int, num_layers: int, attention_width: int, seq_length: int
) -> float:
    """Floating-point operations of forward and backward for one token: 6 N + 12 L h s.

    As in appendix B of PaLM (arXiv:2204.02311): the causal mask is not taken off, recomputation
    for activation checkpointing is not added.

    Args:
        matmul_parameters: ``N``, parameters that are multiplied: all but the embedding tables that
            are only looked up; a tied table counts once, as the output head.
        attention_width: ``h``, heads × head dimension.
    """
    return 6.0 * matmul_parameters + 12.0 * num_layers * attention_width * seq_length


def peak_flops(device_name: str) -> float | None:
    """The dense bf16 peak of one device in FLOP/s, or None for a device that is not known here."""
    return next((peak for part, peak in _PEAK_FLOPS if part in device_name), None)


def model_flops_utilization(
    tokens_per_sec: float, flops_a_token: float, world_size: int, device_peak: float | None
) -> float | None:
    """MFU, 0 to 1: the model's arithmetic a second over what ``world_size`` devices could do."""
    if device_peak is None:
        return None
    return tokens_per_sec * flops_a_token / (world_size * device_peak)
