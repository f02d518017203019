"""Where documents begin in packed samples, for a model that keeps them apart.

Known from the index, which says what a sample is made of: text may hold the end-of-document token, and
documents may lack it. What travels is a few numbers a sample, never a mask.

Legend: g = gradient accumulation steps, b = micro-batch size, s = sequence length, d = documents in
the sample that has most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megatron.neox_arguments.sections import DataArgs


@dataclass(frozen=True)
class Boundaries:
    """What happens where a document begins.

    Attributes:
        reset_position_ids: positions count from 0 again.
        reset_attention_mask: tokens see nothing of what came before.
    """

    reset_position_ids: bool
    reset_attention_mask: bool

    @staticmethod
    def of(data: DataArgs) -> Boundaries | None:
        """As configured; None where nothing happens, so that nobody looks for them."""
        asked = Boundaries(data.reset_position_ids, data.reset_attention_mask)
        return asked if asked.reset_position_ids or asked.reset_attention_mask else None


@dataclass(frozen=True)
class DocumentStarts:
    """Where documents begin in the inputs of one step.

    Attributes:
        starts: ``[g, b, d]`` int32, on the CPU: places of first tokens, ascending from 0. A document
            that began in an earlier sample begins at 0. Samples of fewer documents are filled up
            with s.
        boundaries: what happens there.
        seq_length: s, also where a batch holds a part of each sequence.
    """

    starts: torch.Tensor
    boundaries: Boundaries
    seq_length: int

    @staticmethod
    def collect(
        samples: Sequence[Sequence[int]],
        shape: tuple[int, ...],
        seq_length: int,
        boundaries: Boundaries,
    ) -> DocumentStarts:
        """Of the places in each of the step's ``samples``, which are to have the ``shape`` [g, b].

        A place s is that of a last label, which is no input: it becomes filling.
        """
        starts = np.full((len(samples), max(map(len, samples))), seq_length, np.int32)
        for row, places in zip(starts, samples, strict=True):
            row[: len(places)] = places
        return DocumentStarts(torch.from_numpy(starts).view(*shape, -1), boundaries, seq_length)
