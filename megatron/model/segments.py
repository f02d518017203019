"""Attention within segments: stretches of a sequence, such as packed documents, that see nothing else.

Shapes: b sequences, s tokens, n query heads, k key/value heads, d features of a head, m segments of
all sequences together, c segments of the sequence that has most.

What is known of a segment is where it begins. No mask of s × s is ever made: work and memory are those
of the segments, so that many short documents cost less than one long one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatron.model.attention_kernels import Scores, attend_causally
from megatron.runtime.device import has_flash_attention

# What the flash kernels take.
_HALF = (torch.bfloat16, torch.float16)
_WIDEST_HEAD, _HEAD_UNIT = 256, 8


@dataclass(frozen=True)
class Segments:
    """The segments of a batch, in order: sequence by sequence, from left to right.

    Attributes:
        lengths: m, in tokens; they sum to b × s.
        device: where attention is computed.
    """

    lengths: tuple[int, ...]
    device: torch.device

    @staticmethod
    def from_starts(starts: Tensor, length: int, device: torch.device) -> Segments:
        """The segments that begin at ``starts`` in sequences of ``length`` (s) tokens.

        Args:
            starts: [b, c] ascending from 0, on the CPU: a kernel's launch depends on them. Rows of
                fewer segments are filled up with s.
        """
        assert not starts[:, 0].any(), "a sequence begins with its first segment"
        rows = torch.arange(starts.size(0)).unsqueeze(1) * length
        begins = (starts + rows)[starts < length]
        end = begins.new_full((1,), starts.size(0) * length)
        lengths = torch.diff(begins, append=end).tolist()
        assert min(lengths) > 0, "starts must ascend"
        return Segments(tuple(lengths), device)

    @staticmethod
    def from_places(places: Tensor) -> Segments:
        """The segments whose tokens have ``places`` [b, s] in them: one begins at each 0."""
        flat = places.flatten().cpu()
        begins = (flat == 0).nonzero().flatten()
        lengths = torch.diff(begins, append=begins.new_full((1,), len(flat))).tolist()
        return Segments(tuple(lengths), places.device)

    @cached_property
    def cumulative(self) -> Tensor:
        """Where each begins in all tokens end to end, and the end: [m + 1] int32."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.device, non_blocking=True)

    @cached_property
    def by_length(self) -> ByLength:
        """The segments in order of their lengths."""
        lengths = torch.tensor(self.lengths)
        lengths, segments = lengths.sort(stable=True)
        begins = (lengths.new_tensor((0, *self.lengths[:-1])).cumsum(0))[segments]
        # A segment's tokens are its place in the new order, moved by where it was before.
        moved = begins - (lengths.cumsum(0) - lengths)
        order = torch.arange(sum(self.lengths)) + moved.repeat_interleave(lengths)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        return ByLength(
            order.to(self.device),
            inverse.to(self.device),
            [(count, length) for length, count in sorted(Counter(self.lengths).items())],
        )


class ByLength(NamedTuple):
    """Attributes:
    order: [b s] the tokens, those of the shortest segments first.
    inverse: [b s] from there to where they were.
    groups: (segments, their length) for each length, in that order.
    """

    order: Tensor
    inverse: Tensor
    groups: list[tuple[int, int]]


def positions_within(starts: Tensor, length: int) -> Tensor:
    """Places of tokens in their own segments: [b, s] int64, from 0 on.

    Args:
        starts: [b, c] as :meth:`Segments.from_starts` takes them, on any device.
        length: s.
    """
    places = torch.arange(length, dtype=starts.dtype, device=starts.device).expand(
        starts.size(0), -1
    )
    segment = torch.searchsorted(starts, places.contiguous(), right=True) - 1
    return (places - starts.gather(1, segment)).long()


def attend_within(
    segments: Segments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scores: Scores = Scores(),  # noqa: B008 - frozen
    dropout: float = 0.0,
) -> Tensor:
    """Causal softmax attention of each segment to itself: [b, n, s, d], [b, k, s, d] -> [b, n, s, d].

    One kernel for all segments where PyTorch has one: on accelerators, for half types, without
    dropout. Elsewhere segments of one length are a batch of their own, a call for each length.
    """
    batch, _, length, width = query.shape
    # [b s, n, d] and twice [b s, k, d]
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    if not dropout and scores.are_plain and _has_one_kernel(query):
        out = _in_one_kernel(segments, query, key, value, scores)
    else:
        out = _by_length(segments, query, key, value, scores, dropout)
    return out.view(batch, length, -1, width).transpose(1, 2)


def _has_one_kernel(x: Tensor) -> bool:
    width = x.size(-1)
    fits = width <= _WIDEST_HEAD and width % _HEAD_UNIT == 0
    return x.dtype in _HALF and fits and has_flash_attention(x.device)


def _in_one_kernel(
    segments: Segments, query: Tensor, key: Tensor, value: Tensor, scores: Scores
) -> Tensor:
    """[b s, n, d], [b s, k, d] -> [b s, n, d]."""
    # Not above: it brings torch's compiler, more than a second of every start, to where no GPU is.
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

    ends, longest = segments.cumulative, max(segments.lengths)
    out = varlen_attn(
        query,
        key,
        value,
        ends,
        ends,
        longest,
        longest,
        scale=scores.scale,
        window_size=(-1 if scores.window is None else scores.window - 1, 0),  # causal
        enable_gqa=query.size(1) != key.size(1),
    )
    assert isinstance(out, Tensor)
    return out


def _by_length(
    segments: Segments, query: Tensor, key: Tensor, value: Tensor, scores: Scores, dropout: float
) -> Tensor:
    """[b s, n, d], [b s, k, d] -> [b s, n, d]."""
    order, inverse, groups = segments.by_length
    # split rather than slices: the gradient of a slice is as large as what it is taken from.
    sizes = [count * length for count, length in groups]
    parts = [torch.split(reordered(x, order, inverse), sizes) for x in (query, key, value)]
    found = []
    for group, *tokens in zip(groups, *parts, strict=True):
        heads = [x.unflatten(0, group).transpose(1, 2) for x in tokens]
        out = attend_causally(heads[0], heads[1], heads[2], scores, dropout=dropout)
        found.append(out.transpose(1, 2).flatten(0, 1))
    return reordered(torch.cat(found), inverse, order)


def reordered(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """``x[order]``, whose gradient is a look-up too: torch would add up what has nothing to add."""
    out: Tensor = _Reordered.apply(x, order, inverse)  # type: ignore[no-untyped-call]
    return out


class _Reordered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None
