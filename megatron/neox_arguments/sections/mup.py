"""Maximal update parametrisation (muP, arXiv:2203.03466): a narrow model's learning rate for a wide one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from megatron.neox_arguments.typed import PositiveFloat, Range


@dataclass(frozen=True)
class MupArgs:
    """Learning rates and scales that carry over from a narrow model to a wide one."""

    use_mup: bool = False
    """Whether initial weights, learning rates, attention and logits follow from how much wider the model is
    than that of `base_shapes_file`, so that what is best for that one is best for this one."""

    coord_check: bool = False
    """Whether the run measures, instead of training, how the size of activations changes with the width
    over the first steps: it writes `coord_check.csv` (and `.png` with matplotlib) into `log_dir`, or
    `save`, and ends."""

    save_base_shapes: bool = False
    """Whether the run writes this model's shapes into `base_shapes_file`, instead of training, and ends."""

    base_shapes_file: str | None = None
    """File of the narrow model's shapes; `use_mup` needs it, `save_base_shapes` writes it."""

    mup_init_scale: PositiveFloat = 1.0
    """Factor on the initial weights with `use_mup`."""

    mup_attn_temp: PositiveFloat = 1.0
    """Attention temperature with `use_mup`: scores are divided by it, and by the width of a head."""

    mup_output_temp: PositiveFloat = 1.0
    """Output temperature with `use_mup`: logits are divided by it."""

    mup_embedding_mult: PositiveFloat = 1.0
    """Factor with `use_mup` on what the embedding gives."""

    mup_rp_embedding_mult: PositiveFloat = 1.0
    """Factor with `use_mup` on what the tables of positions give (`pos_emb: learned` and `rpe`)."""

    mup_width_scale: Annotated[int, Range(low=2)] = 2
    """How many times as wide each model of `coord_check` is as the one before."""
