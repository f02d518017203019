"""How positions enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import NotYet, PositiveInt, Share


@dataclass(frozen=True)
class PositionArgs:
    """How positions enter."""

    pos_emb: Annotated[
        Literal["learned", "rotary", "none"], NotYet(("sinusoidal", "rpe", "alibi"))
    ] = "learned"
    """How positions enter: a learned table, rotations of queries and keys, or not at all."""

    rotary_pct: Share = 1.0
    """Share of each head that `pos_emb: rotary` rotates; must come out as an even number of dimensions."""

    rotary_emb_base: PositiveInt = 10000
    """Base of the rotary frequencies."""
