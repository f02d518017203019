#!/usr/bin/env python
"""Attention of packed documents: `segments.py [--seq-length 2048] [--batch 2] [--heads 12] [--repeats 5]`.

Milliseconds forward and backward, on this machine's device, of attention that keeps documents apart
(reset_attention_mask), for samples of many short and of few long documents; beside it causal attention
over the whole sample, which it replaces, and the same result by a mask of s x s. Medians, fp32 on a CPU
and bfloat16 elsewhere.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.model.segments import Segments, attend_within  # noqa: E402
from megatron.mpu.matmul import attend  # noqa: E402
from megatron.runtime.device import local_device  # noqa: E402

HEAD_DIM = 64
MEAN_TOKENS = (10, 50, 200, 1000)


def starts_of(batch: int, length: int, mean: int, generator: torch.Generator) -> Tensor:
    """[b, c] starts of documents of ``mean`` tokens, none of them like another."""
    begins = torch.rand(batch, length, generator=generator) < 1 / mean
    begins[:, 0] = True
    places = torch.arange(length).expand(batch, -1).masked_fill(~begins, length)
    most = int(begins.sum(1).max())
    return places.sort(1).values[:, :most].int()


def dense_mask(starts: Tensor, length: int) -> Tensor:
    """[b, 1, s, s], true where a token may look."""
    places = torch.arange(length).expand(len(starts), -1).contiguous()
    number = torch.searchsorted(starts.long(), places, right=True)
    same = number.unsqueeze(1) == number.unsqueeze(2)
    return (same & torch.ones(length, length, dtype=torch.bool).tril()).unsqueeze(1)


def milliseconds(attention: Callable[[], Tensor], inputs: list[Tensor], repeats: int) -> float:
    """Median of one pass forward and backward."""
    taken = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        out = attention()
        gradients = torch.autograd.grad(out, inputs, torch.ones_like(out))
        for gradient in gradients:
            gradient[0, 0, 0, 0].item()  # waits for the device
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    device = local_device(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    shape = (asked.batch, asked.heads, asked.seq_length, HEAD_DIM)
    inputs = [
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for _ in range(3)
    ]
    query, key, value = inputs

    def causal() -> Tensor:
        return attend(query, key, value, causal=True)

    whole = milliseconds(causal, inputs, asked.repeats)
    print(f"{'whole sample, causal':32s}{whole:9.1f} ms")
    for mean in MEAN_TOKENS:
        starts = starts_of(asked.batch, asked.seq_length, mean, generator)
        mask = dense_mask(starts, asked.seq_length).to(device)

        def masked(mask: Tensor = mask) -> Tensor:
            return attend(query, key, value, mask=mask)

        def within(starts: Tensor = starts) -> Tensor:
            # Made anew, as for each micro-batch; a model's layers share it.
            segments = Segments.from_starts(starts, asked.seq_length, device)
            return attend_within(segments, query, key, value)

        dense = milliseconds(masked, inputs, asked.repeats)
        apart = milliseconds(within, inputs, asked.repeats)
        print(
            f"{mean:5d} tokens a document, apart   {apart:9.1f} ms = {apart / whole:5.2f} of causal, "
            f"{apart / dense:5.2f} of a dense mask ({dense:.1f} ms)"
        )


if __name__ == "__main__":
    main()
