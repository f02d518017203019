"""Relative positions as T5 has them: what a head adds to a score depends on how far back the key is.

Distances are told apart in buckets: small ones each by itself, large ones together, ever more of them
(Raffel et al., T5, 2020, section 2.1). One table of [buckets, heads] serves all layers; it belongs to
the first transformer layer, as ``attention.rpe.weight``. GPT-NeoX's form: what comes out of the table
counts before scores are divided by sqrt(head width), so it is multiplied by that.

Shapes: n heads of this rank's tensor-parallel part, of which it may attend with some.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from megatron.mpu.groups import ParallelGroups
from megatron.mpu.layers import divide, sharded
from megatron.neox_arguments.sections import ModelArgs


def buckets_of(distances: Tensor, buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance, in tokens back from the query: int64, of the same shape.

    The first half of the buckets has a distance each. The others share what lies between there and
    ``max_distance`` evenly on a logarithmic scale, and the last one has everything beyond.
    """
    exact = buckets // 2
    # In fp32, as others do: at the borders of buckets rounding decides.
    share = torch.log(distances.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    wide = exact + (share * (buckets - exact)).long()
    return torch.where(distances < exact, distances, wide.clamp(max=buckets - 1))


class RelativePositionBias(nn.Module):
    """A number for each bucket and head.

    Args:
        model: the model's section of the configuration.
        scale: what the table is multiplied by; None: sqrt(head width).
        groups: the layout of ranks. Model-parallel ranks share the heads; those of a context group
            hold the same ones and attend with a part of them each.
    """

    def __init__(
        self, model: ModelArgs, *, groups: ParallelGroups, scale: float | None = None
    ) -> None:
        super().__init__()
        size = groups.get_model_parallel_world_size()
        heads = divide(model.num_attention_heads, size, "num_attention_heads")
        self.weight = sharded(model.rpe_num_buckets, heads)
        self.buckets = model.rpe_num_buckets
        self.max_distance = model.rpe_max_distance
        # By device, of as many distances as were asked for at most.
        self._buckets: dict[torch.device, Tensor] = {}
        self.scale = math.sqrt(model.head_width) if scale is None else scale
        attending = divide(heads, groups.get_context_parallel_world_size(), "num_attention_heads")
        first = attending * groups.get_context_parallel_rank()
        self.attending = slice(first, first + attending)

    def forward(self, length: int) -> Tensor:
        """What each head that this rank attends with adds, for 0 ... length - 1 tokens back: [n, length]."""
        buckets = self._first_buckets(length)
        return self.weight[buckets, self.attending].t() * self.scale

    def _first_buckets(self, length: int) -> Tensor:
        """The buckets of the first ``length`` distances, which all layers ask for in each pass."""
        device = self.weight.device
        found = self._buckets.get(device)
        if found is None or len(found) < length:
            # What generation asks for first must serve training too, which keeps it for the backward pass.
            with torch.inference_mode(False):
                distances = torch.arange(length, device=device)
                found = buckets_of(distances, self.buckets, self.max_distance)
                self._buckets[device] = found
        return found[:length]
