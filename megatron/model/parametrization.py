"""What of a model follows from its width: how weights start and how fast they learn, and fixed factors.

In the standard parametrisation nothing but the initial scheme does. In the maximal update parametrisation
(muP; Yang et al., Tensor Programs V, 2022, arXiv:2203.03466, table 8, for Adam) activations and their
changes have the same size at every width, so that a learning rate that is best for a narrow model is best
for a wide one. With r a matrix's inputs over those of the base model, the narrow one whose shapes are known:

- weights between two widths (all of attention and MLP) start at the base model's deviation / sqrt(r) and
  learn at the base model's rate / r; their weight decay is r times as much, so that rate × decay stays;
- all others start and learn as in the base model;
- scores of attention are divided by the width of a head instead of its square root, logits by r.

GPT-NeoX's multipliers are beside these: of the initial weights, of what the tables of ids and positions
give, and temperatures, by which scores and logits are divided. The base model itself differs from a
standard one in the scores of attention alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs, MupArgs

Shape = tuple[int, ...]
# Whole tensors, whatever the layout of ranks, by their names in the whole model.
Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Parametrization:
    """The standard one, unless :func:`maximal_update` made it.

    Attributes:
        score_scale: what products of queries and keys are multiplied by; None: 1 / sqrt(head width).
        distance_scale: what the table of ``pos_emb: rpe`` is multiplied by; None: sqrt(head width).
        embedding_factor, position_factor: on what the tables of ids and of positions give.
        logits_factor: on what the head reads.
        initial_factor: on initial weights, beside what widths do to them.
        base: shapes of the base model; empty: nothing depends on widths.
        ratios: r of each weight between two widths.
    """

    score_scale: float | None = None
    distance_scale: float | None = None
    embedding_factor: float = 1.0
    position_factor: float = 1.0
    logits_factor: float = 1.0
    initial_factor: float = 1.0
    base: Shapes = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, name: str) -> float:
        """How many times as many inputs a parameter has as in the base model, where it counts; else 1.

        Args:
            name: of a rank's parameter in the model, ``sequential.<number>.<name in the layer>``.
        """
        return self.ratios.get(layout.whole_name(name), 1.0)

    @property
    def base_hidden_size(self) -> int:
        """Width of the base model's residual stream."""
        return self.base[layout.WORD_EMBEDDINGS][1]


STANDARD = Parametrization()


def maximal_update(
    settings: MupArgs, model: ModelArgs, *, base: Shapes, here: Shapes
) -> Parametrization:
    """The parametrisation of a model of the shapes ``here`` that follows a ``base`` model.

    Args:
        settings: GPT-NeoX's multipliers.
        model: the model's section of the configuration.
        base: shapes of the base model, which has the same tensors.
        here: shapes of the model.
    """
    # Ids and positions are no widths: of them the model's own count.
    base = {
        name: shape if layout.is_between_widths(name) else (*here[name][:-1], shape[-1])
        for name, shape in base.items()
    }
    ratios = {
        name: here[name][1] / base[name][1] for name in here if layout.is_between_widths(name)
    }
    wider = here[layout.WORD_EMBEDDINGS][1] / base[layout.WORD_EMBEDDINGS][1]
    return Parametrization(
        score_scale=1.0 / (model.head_width * settings.mup_attn_temp),
        distance_scale=_distance_scale(base) * settings.mup_rp_embedding_mult,
        embedding_factor=settings.mup_embedding_mult,
        position_factor=settings.mup_rp_embedding_mult,
        logits_factor=1.0 / (wider * settings.mup_output_temp),
        initial_factor=settings.mup_init_scale,
        base=base,
        ratios=ratios,
    )


def _distance_scale(base: Shapes) -> float:
    """Of the base model, whose table has a column for each head; 1 where there is none."""
    block = f"sequential.{layout.FIRST_BLOCK}.attention"
    if f"{block}.rpe.weight" not in base:
        return 1.0
    return math.sqrt(base[f"{block}.dense.weight"][1] / base[f"{block}.rpe.weight"][1])
