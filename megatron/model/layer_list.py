"""The layers of a model in their order: what makes each, and the list that holds all or some of them.

Their numbers are part of every parameter's name (:mod:`megatron.model.layout`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from megatron.model.parametrization import STANDARD, Parametrization
from megatron.model.positional_embeddings import RotaryTable
from megatron.model.relative_positions import RelativePositionBias
from megatron.model.transformer import TransformerLayer
from megatron.model.word_embeddings import Embedding, FinalNorm, Head, TiedHead
from megatron.mpu.groups import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs


def layer_factories(
    model: ModelArgs,
    *,
    padded_vocab_size: int,
    groups: ParallelGroups,
    parametrization: Parametrization = STANDARD,
    soft_prompt: int = 0,
) -> list[Callable[[], nn.Module]]:
    """What makes each layer of the list, in order; a pipeline stage calls only those it holds."""
    rotary = None
    if model.pos_emb == "rotary":
        rotary = RotaryTable(
            model.rotary_dim,
            model.rotary_emb_base,
            model.max_position_embeddings + soft_prompt,
            model,
        )
    relative = None
    if model.pos_emb == "rpe":
        relative = RelativePositionBias(model, groups=groups, scale=parametrization.distance_scale)
    of_width: dict[str, Any] = {"groups": groups, "parametrization": parametrization}
    blocks: list[Callable[[], nn.Module]] = [
        partial(TransformerLayer, model, number, rotary=rotary, relative=relative, **of_width)
        for number in range(model.num_layers)
    ]
    head: Callable[[], nn.Module] = (
        partial(Head, model, padded_vocab_size, **of_width)
        if model.no_weight_tying
        else partial(TiedHead, **of_width)
    )
    return [
        partial(Embedding, model, padded_vocab_size, soft_prompt=soft_prompt, **of_width),
        nn.Identity,
        *blocks,
        nn.Identity,
        partial(FinalNorm, model, groups=groups),
        head,
    ]


class LayerList(nn.ModuleList):
    """Layers by their numbers in the list of the whole model, of which these may be some only.

    Args:
        total: entries of the whole list.
    """

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total = total

    def put(self, number: int, layer: nn.Module) -> None:
        """Hold ``layer`` under its number, which is part of its parameters' names."""
        self.add_module(str(number), layer)

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return super().__getitem__(number)
        return self._modules[str(number % self._total)]
