"""How positions enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import NonNegativeInt, NotYet, PositiveFloat, PositiveInt, Share


@dataclass(frozen=True)
class PositionArgs:
    """How positions enter."""

    pos_emb: Annotated[
        Literal["learned", "rotary", "sinusoidal", "alibi", "none"], NotYet(("rpe",))
    ] = "learned"
    """How positions enter: a learned table or fixed sines and cosines added to the embeddings, rotations
    of queries and keys, scores that fall with distance (`alibi`), or not at all."""

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
