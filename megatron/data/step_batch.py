"""What one rank needs for one optimizer step.

Legend: g = gradient accumulation steps, b = micro-batch size, s = sequence length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from megatron.data.boundaries import Boundaries, DocumentStarts


@dataclass(frozen=True)
class StepBatch:
    """What one rank needs for one optimizer step.

    Attributes:
        tokens: ``[g, b, s + 1]`` int64; inputs are all but the last.
        loss_mask: ``[g, b, s]`` bool, which predictions count.
        first_sample: the step's first sample, over all ranks.
        num_samples: samples of the step, over all ranks.
        labels: ``[g, b, s]`` int64, ids of the vocabulary also where masked; None where they are the
            tokens that follow.
        documents: where documents begin, if the model is to know; always on the CPU, and always of
            whole sequences.
    """

    tokens: torch.Tensor
    loss_mask: torch.Tensor
    first_sample: int
    num_samples: int
    labels: torch.Tensor | None = None
    documents: DocumentStarts | None = None

    @property
    def inputs(self) -> torch.Tensor:
        """What the model reads, ``[g, b, s]``."""
        return self.tokens[..., :-1]

    @property
    def targets(self) -> torch.Tensor:
        """What it should have predicted, ``[g, b, s]``."""
        return self.tokens[..., 1:] if self.labels is None else self.labels

    def part_of_sequences(self, rank: int, size: int) -> StepBatch:
        """The ``rank``-th of ``size`` equal parts of each sequence: s / size inputs and their targets."""
        if size == 1:
            return self
        length = self.loss_mask.size(-1)
        assert length % size == 0, f"{size} ranks cannot share {length} tokens evenly"
        start, stop = (place * (length // size) for place in (rank, rank + 1))
        labels = None if self.labels is None else self.labels[..., start:stop].contiguous()
        return replace(
            self,
            # The last input's target is the next part's first input.
            tokens=self.tokens[..., start : stop + 1].contiguous(),
            loss_mask=self.loss_mask[..., start:stop].contiguous(),
            labels=labels,
        )

    def pin_memory(self) -> StepBatch:
        """The same in page-locked memory, from where an accelerator copies on its own."""
        return self._with_tensors(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> StepBatch:
        """The same on ``device``; where it is pinned, the copy is not waited for."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> StepBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors: dict[str, Any] = {
            name: change(value) for name, value in values.items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)


def blank_batch(
    shape: tuple[int, ...],
    seq_length: int,
    *,
    first_sample: int,
    num_samples: int,
    boundaries: Boundaries | None,
) -> StepBatch:
    """A batch of the ``shape`` [g, b] in which nothing counts, for whoever needs to know its shape only."""
    documents = None
    if boundaries is not None:
        starts = [[0]] * int(np.prod(shape))
        documents = DocumentStarts.collect(starts, shape, seq_length, boundaries)
    return StepBatch(
        tokens=torch.zeros(*shape, seq_length + 1, dtype=torch.int64),
        loss_mask=torch.zeros(*shape, seq_length, dtype=torch.bool),
        first_sample=first_sample,
        num_samples=num_samples,
        documents=documents,
    )
