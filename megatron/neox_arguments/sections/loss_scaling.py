"""Loss scaling of fp16, in GPT-NeoX's flat words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from megatron.neox_arguments.typed import Ignored, NonNegativeFloat, PositiveFloat, PositiveInt

_WITH_FP16 = Ignored("has a meaning with fp16 only, which is not supported yet")


@dataclass(frozen=True)
class LossScalingArgs:
    """Factors that keep small gradients above fp16's smallest number."""

    loss_scale: Annotated[NonNegativeFloat | None, _WITH_FP16] = None
    """Fixed factor; 0 or null lets it follow overflows."""

    dynamic_loss_scale: Annotated[bool | None, _WITH_FP16] = None
    """Whether the factor follows overflows."""

    loss_scale_window: Annotated[PositiveFloat, _WITH_FP16] = 1000.0
    """Steps without overflow after which the factor doubles."""

    min_scale: Annotated[PositiveFloat, _WITH_FP16] = 1.0
    """Smallest factor."""

    hysteresis: Annotated[PositiveInt, _WITH_FP16] = 2
    """Overflows before the factor is halved."""
