"""Dropout where model-parallel ranks compute different things, and where they compute the same.

Before each forward pass the default generators of all model-parallel ranks get the same seed
(:func:`megatron.runtime.seeds.seed_dropout`), so that what they compute alike (dropout of whole
hidden states) drops the same elements. Where each has a part of its own (attention of its heads,
hidden states of its tokens) :func:`own_draws` gives it numbers of its own, seeded by one draw from
the common stream and the rank. Nothing but the default generators has a state: a resumed run stores
none, and activation checkpointing, which rewinds them, draws the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron.mpu.groups import ParallelGroups
from megatron.runtime.device import forked_generators
from megatron.runtime.seeds import derive_seed


@contextmanager
def own_draws(groups: ParallelGroups) -> Iterator[None]:
    """Within the block random numbers differ from model-parallel rank to rank; behind it not again."""
    if groups.get_model_parallel_world_size() == 1:
        yield
        return
    common = int(torch.randint(2**62, ()))
    with forked_generators():
        torch.manual_seed(derive_seed(common, "model-parallel", groups.get_model_parallel_rank()))
        yield


def dropout_between_layers(x: Tensor, probability: float, groups: ParallelGroups) -> Tensor:
    """Dropout of hidden states: the same on all ranks, or of this rank's own part of the sequence."""
    if not groups.sequence_parallel:
        return F.dropout(x, probability)
    with own_draws(groups):
        return F.dropout(x, probability)
