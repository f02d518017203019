"""Seeds that are a function of where a random number is drawn, so that no generator is ever stored.

Dropout at one place of a run (step, micro-batch, rank) draws the same numbers whatever happened
before: a resumed run needs no generator state, and no rank's state can be forgotten.
"""

from __future__ import annotations

import hashlib
import struct

import torch


def derive_seed(seed: int, *place: int | str) -> int:
    """A 63-bit seed that depends on ``seed`` and every part of ``place``, and on nothing else."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *place):
        # A length in front of each part keeps ("ab", "c") and ("a", "bc") apart.
        text = str(part).encode()
        digest.update(struct.pack("<Q", len(text)))
        digest.update(text)
    return int.from_bytes(digest.digest(), "little") >> 1


def seed_dropout(
    seed: int,
    *,
    step: int,
    micro_batch: int,
    data_rank: int,
    pipe_rank: int = 0,
    context_rank: int = 0,
) -> None:
    """Seed torch's default generators (CPU and accelerator) for one forward pass.

    Model-parallel ranks get the same seed: see :mod:`megatron.mpu.random`.

    Args:
        seed: the run's ``seed``.
        step: 0-based training step.
        micro_batch: 0-based micro-batch of the step on this rank.
        data_rank: rank along the data axis; likewise ``pipe_rank`` and ``context_rank``.
    """
    place = (step, micro_batch, data_rank, pipe_rank, context_rank)
    torch.manual_seed(derive_seed(seed, "dropout", *place))
