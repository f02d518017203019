"""From a batch to what the model reads, alike in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from megatron.data.step_batch import StepBatch
from megatron.model import GPT2Model, Segments, positions_within
from megatron.model.stages import begin_anew, through_stages
from megatron.mpu.pipe import handed_down


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


def places_of(batch: StepBatch, micro: int) -> Tensor | None:
    """Where a micro-batch's tokens are in their documents, [b, s] int32; None: it makes no difference."""
    if batch.documents is None:
        return None
    inputs, starts = batch.inputs[micro], batch.documents.starts[micro]
    there = starts.to(inputs.device, non_blocking=True)
    return positions_within(there, inputs.size(1)).int()


def evaluated_logits(model: GPT2Model, batch: StepBatch, micro: int) -> Tensor | None:
    """Logits of one micro-batch without gradients; in a pipeline on its last stage only, else None.

    All stages of a pipeline call this; what ``batch`` holds counts on the first.
    """
    if model.is_first and model.is_last:
        return logits_of(model, batch, micro)
    places = places_of(batch, micro)
    resets = None
    if places is not None and batch.documents is not None:
        places, resets = handed_down(places, model.groups), batch.documents.boundaries
    positions, segments = begin_anew(places, resets)
    return through_stages(model, batch.inputs[micro], position_ids=positions, segments=segments)
