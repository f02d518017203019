"""How positions enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megatron.neox_arguments.typed import NonNegativeInt, PositiveFloat, PositiveInt, Share

_LONGER = ("rotary_scaling_factor", "rotary_original_positions")
# The keys that each way of `rotary_scaling` looks at.
SCALING_KEYS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("rotary_scaling_factor",),
    "llama3": (*_LONGER, "rotary_low_freq_factor", "rotary_high_freq_factor"),
    "yarn": (*_LONGER, "rotary_beta_fast", "rotary_beta_slow", "rotary_attention_factor"),
}
ALL_SCALING_KEYS = tuple(dict.fromkeys(key for keys in SCALING_KEYS.values() for key in keys))


@dataclass(frozen=True)
class PositionArgs:
    """How positions enter."""

    pos_emb: Literal["learned", "rotary", "sinusoidal", "rpe", "alibi", "none"] = "learned"
    """How positions enter: a learned table or fixed sines and cosines added to the embeddings, rotations
    of queries and keys, a learned number for each head and distance added to scores (`rpe`, as in T5, one
    table for all layers), scores that fall with distance (`alibi`), or not at all."""

    rpe_num_buckets: PositiveInt = 32
    """Distances that `pos_emb: rpe` tells apart: half of them up to this many tokens, the others ever
    longer stretches."""

    rpe_max_distance: PositiveInt = 128
    """Tokens from which on `pos_emb: rpe` tells no more distances apart."""

    opt_pos_emb_offset: NonNegativeInt = 0
    """Rows of `pos_emb: learned`'s table in front of that of position 0, as in OPT."""

    rotary_pct: Share = 1.0
    """Share of each head that `pos_emb: rotary` rotates; must come out as an even number of dimensions."""

    rotary_emb_base: PositiveInt = 10000
    """Base of the rotary frequencies."""

    rotary_scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How rotary frequencies are changed for texts longer than the model was first trained on: all
    divided by `rotary_scaling_factor`; only the slow ones (Llama 3.1); or those that turn seldom, with
    larger scores (YaRN, arXiv:2309.00071)."""

    rotary_scaling_factor: PositiveFloat = 1.0
    """By how much `rotary_scaling` divides."""

    rotary_original_positions: PositiveInt | None = None
    """Positions that the model was first trained on; `llama3` and `yarn` need it."""

    rotary_low_freq_factor: PositiveFloat = 1.0
    """`llama3` divides what turns fewer times than this over the original positions."""

    rotary_high_freq_factor: PositiveFloat = 4.0
    """`llama3` keeps what turns more often than this over the original positions."""

    rotary_beta_fast: PositiveFloat = 32.0
    """`yarn` keeps what turns more often than this over the original positions."""

    rotary_beta_slow: PositiveFloat = 1.0
    """`yarn` divides what turns fewer times than this over the original positions."""

    rotary_attention_factor: PositiveFloat | None = None
    """Factor of `yarn` on queries and keys. Default: 0.1 ln(`rotary_scaling_factor`) + 1."""
