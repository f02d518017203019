"""From a batch to what the model reads, alike in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from megatron.data.loader import StepBatch
from megatron.model import Segments, positions_within


def logits_of(model: Callable[..., Any], batch: StepBatch, micro: int) -> Tensor:
    """Logits of one micro-batch of ``batch``, which is on the model's device: ``[b, s, v]``.

    With context parallelism ``batch`` holds a part of each sequence, and the logits are its.
    """
    inputs, documents = batch.inputs[micro], batch.documents
    options: dict[str, Any] = {}
    if documents is not None:
        starts, length = documents.starts[micro], documents.seq_length
        if documents.boundaries.reset_position_ids:
            there = starts.to(inputs.device, non_blocking=True)
            options["position_ids"] = positions_within(there, length)
        if documents.boundaries.reset_attention_mask:
            options["segments"] = Segments.from_starts(starts, length, inputs.device)
    logits: Tensor = model(inputs, **options)
    return logits
