"""Maximal update parametrisation (arXiv:2203.03466): GPT-NeoX's keys for it, refused for now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from megatron.neox_arguments.typed import Ignored, PositiveFloat, PositiveInt, Refused

_NOT_YET = Refused("not supported yet: take it out")
_WITH_MUP = Ignored("has a meaning with use_mup only")


@dataclass(frozen=True)
class MupArgs:
    """Learning rates and scales that carry over from a narrow model to a wide one."""

    use_mup: Annotated[bool, _NOT_YET] = False
    """Whether the model is parametrised that way."""

    coord_check: Annotated[bool, _NOT_YET] = False
    """Whether the run measures how activations grow with the width, and ends."""

    save_base_shapes: Annotated[bool, _NOT_YET] = False
    """Whether the run writes `base_shapes_file`, and ends."""

    base_shapes_file: Annotated[str | None, _WITH_MUP] = None
    """File of the narrow model's shapes."""

    mup_init_scale: Annotated[PositiveFloat, _WITH_MUP] = 1.0
    """Factor on the initial weights."""

    mup_attn_temp: Annotated[PositiveFloat, _WITH_MUP] = 1.0
    """Attention temperature: scores are divided by it."""

    mup_output_temp: Annotated[PositiveFloat, _WITH_MUP] = 1.0
    """Output temperature: logits are divided by it."""

    mup_embedding_mult: Annotated[PositiveFloat, _WITH_MUP] = 1.0
    """Factor on what the embedding gives."""

    mup_rp_embedding_mult: Annotated[PositiveFloat, _WITH_MUP] = 1.0
    """Factor on relative position embeddings."""

    mup_width_scale: Annotated[PositiveInt, _WITH_MUP] = 2
    """How much wider the second model of `save_base_shapes` is."""
