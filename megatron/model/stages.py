"""One road through the stages of a pipeline, forward only: for evaluation and for generation.

All ranks of a pipeline make the same calls in the same order, so that nobody need ask what comes next.
A stage that has handed on its hidden states goes on with its next call: micro-batches follow each other
through the stages by themselves.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary (one rank's part of it).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from megatron.model.gpt2_model import GPT2Model
from megatron.model.kv_cache import KVCache
from megatron.model.segments import Segments
from megatron.mpu.pipe import of_last_stage, receive_from_previous, send_to_next


class Resets(Protocol):
    """What begins anew where a document begins."""

    @property
    def reset_position_ids(self) -> bool: ...
    @property
    def reset_attention_mask(self) -> bool: ...


def begin_anew(
    places: Tensor | None, resets: Resets | None
) -> tuple[Tensor | None, Segments | None]:
    """The position ids and segments that ``places`` stand for, as :class:`GPT2Model` takes them.

    Places are what documents look like on their way between stages: of one shape, whatever is in them.

    Args:
        places: [b, s] of each token in its own document; None where documents make no difference.
        resets: what they change.
    """
    if places is None:
        return None, None
    assert resets is not None
    return (
        places.long() if resets.reset_position_ids else None,
        Segments.from_places(places) if resets.reset_attention_mask else None,
    )


def through_stages(
    stage: GPT2Model,
    tokens: Tensor,
    cache: KVCache | None = None,
    position_ids: Tensor | None = None,
    only: Tensor | None = None,
    segments: Segments | None = None,
) -> Tensor | None:
    """What the whole model gives for ``tokens`` [b, s]; None on all stages but the last.

    All ranks of the pipeline call this. What ``tokens`` are counts on the first stage only; the other
    arguments are those of :meth:`GPT2Model.forward` and count on every stage.
    """
    x = tokens
    if not stage.is_first:
        weight = next(stage.parameters())
        shape = hidden_shape(stage, tokens)
        x = receive_from_previous(shape, weight.dtype, weight.device, stage.groups)
    x = stage.forward(x, cache, position_ids, only, segments)
    if stage.is_last:
        return x
    send_to_next(x, stage.groups)
    return None


def hidden_shape(stage: GPT2Model, tokens: Tensor) -> tuple[int, int, int]:
    """Of the hidden states between stages that belong to ``tokens`` [b, s]: [b, s, h].

    With sequence parallelism each model-parallel rank hands its own part of the sequence on.
    """
    groups, (batch, length) = stage.groups, tokens.shape
    if groups.sequence_parallel:
        length //= groups.get_model_parallel_world_size()
    return batch, length, stage.model_args.hidden_size


def logits_everywhere(
    model: GPT2Model,
    tokens: Tensor,
    cache: KVCache | None = None,
    position_ids: Tensor | None = None,
    only: Tensor | None = None,
) -> Tensor:
    """The logits of :meth:`GPT2Model.forward`, on every stage: all call this with the same arguments."""
    if model.is_first and model.is_last:
        logits: Tensor = model(tokens, cache, position_ids, only)
        return logits
    found = through_stages(model, tokens, cache, position_ids, only)
    if found is None:
        weight = next(model.parameters())
        batch, length = tokens.shape
        rows = model.padded_vocab_size // model.groups.get_model_parallel_world_size()
        shape = (batch, length if only is None else 1, rows)
        found = torch.empty(shape, dtype=weight.dtype, device=weight.device)
    return of_last_stage(found, model.groups)
