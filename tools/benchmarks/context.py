#!/usr/bin/env python
"""Long sequences on ranks that share them: `context.py [--seq-length 4096] [--sizes 1 2 4]`.

For each number of context-parallel ranks one training step of a small model on one sequence, in as many
processes of this machine: what a rank keeps for the backward pass (tensors that autograd saves, each
storage once, the weights left out), by how much its process grew at most, and the seconds of the step.
Ranks of one machine share its cores: the seconds show the exchange, not a speed-up.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.losses import loss_sum  # noqa: E402
from megatron.model import GPT2Model  # noqa: E402
from megatron.mpu import ParallelGroups  # noqa: E402
from megatron.neox_arguments.sections import ModelArgs  # noqa: E402
from megatron.runtime.process import end_process, start_process  # noqa: E402
from tools.benchmarks.measuring import (  # noqa: E402
    environments_of_ranks,
    kept_for_backward,
    own_memory,
)

MIB = 2**20
VOCABULARY = 512


@dataclass(frozen=True)
class Found:
    """Attributes: MiB that a rank keeps and by which its process grows, seconds of a step."""

    kept: float
    grown: float
    seconds: float


def step(model: GPT2Model, tokens: Tensor, labels: Tensor) -> float:
    """Forward and backward; MiB that were kept in between."""
    with kept_for_backward(model) as kept:
        loss = loss_sum(model(tokens), labels, torch.ones_like(labels).bool(), model.groups)
    torch.autograd.backward(loss)
    return sum(kept.values()) / MIB


def measure(asked: argparse.Namespace) -> Found:
    """One rank's part of a world whose ranks all share one sequence."""
    world = start_process("gloo")
    groups = ParallelGroups(world, context_parallel_size=world.size)
    shape = ModelArgs(
        num_layers=2,
        hidden_size=asked.hidden_size,
        num_attention_heads=8,
        seq_length=asked.seq_length,
        max_position_embeddings=asked.seq_length,
        pos_emb="rotary",
    )
    model = GPT2Model(shape, padded_vocab_size=VOCABULARY, groups=groups, seed=1)
    part = asked.seq_length // world.size
    tokens = torch.arange(part).remainder(VOCABULARY).unsqueeze(0)
    step(model, tokens[:, : max(1, 64 // world.size)], tokens[:, : max(1, 64 // world.size)])
    before, started = own_memory("VmHWM"), time.perf_counter()
    kept = step(model, tokens, tokens)
    seconds = time.perf_counter() - started
    found = Found(kept, (own_memory("VmHWM") - before) / MIB, seconds)
    worst = max(world.all_gather(found), key=lambda one: one.kept)
    end_process()
    return worst


def in_a_world(size: int, asked: argparse.Namespace) -> Found:
    flags = ["--seq-length", str(asked.seq_length), "--hidden-size", str(asked.hidden_size)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", *flags],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for environment in environments_of_ranks(size)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a rank of {size} failed")
    return Found(**json.loads(said[0].splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seq-length", type=int, default=4096)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        print(json.dumps(asdict(measure(asked))))
        return
    found = {size: in_a_world(size, asked) for size in asked.sizes}
    first = next(iter(found.values()))
    print(
        f"{'ranks':>5}  {'kept MiB':>8}  {'of first':>8}  {'grown MiB':>9}  {'of first':>8}  {'s':>6}"
    )
    for size, one in found.items():
        shares = one.kept / first.kept, one.grown / first.grown
        print(
            f"{size:5}  {one.kept:8.1f}  {shares[0]:8.2f}  {one.grown:9.1f}  {shares[1]:8.2f}  "
            f"{one.seconds:6.2f}"
        )


if __name__ == "__main__":
    main()
