"""Mixtures of experts: GPT-NeoX's keys for them, refused for now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Refused,
)

_WITH_EXPERTS = Refused("experts are not supported yet: take it out")


@dataclass(frozen=True)
class MoEArgs:
    """MLPs of which each token uses some."""

    moe_num_experts: Annotated[
        NonNegativeInt,
        Refused("experts are not supported yet: take it out, or set it to 1", off=(0,)),
    ] = 1
    """MLPs per expert layer; 1 is a dense model."""

    moe_expert_interval: Annotated[PositiveInt, _WITH_EXPERTS] = 1
    """Every how many layers one has experts."""

    moe_top_k: Annotated[PositiveInt, _WITH_EXPERTS] = 1
    """Experts that each token uses."""

    moe_router_type: Annotated[Literal["sinkhorn", "topk"], _WITH_EXPERTS] = "sinkhorn"
    """How tokens are given to experts."""

    moe_lbl_in_fp32: Annotated[bool, _WITH_EXPERTS] = False
    """Whether the load-balancing loss is computed in fp32."""

    moe_jitter_eps: Annotated[NonNegativeFloat | None, _WITH_EXPERTS] = None
    """Width of the noise on the router's input."""
