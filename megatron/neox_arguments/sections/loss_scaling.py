"""Loss scaling of fp16, in GPT-NeoX's flat words; without fp16 they change nothing."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.neox_arguments.typed import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class LossScalingArgs:
    """Factors that keep small gradients above fp16's smallest number."""

    loss_scale: NonNegativeFloat | None = None
    """Short for `fp16.loss_scale`: a fixed factor; 0 or null lets it follow overflows."""

    dynamic_loss_scale: bool | None = None
    """Whether the factor follows overflows. It does unless `loss_scale` fixes one; the two must agree."""

    loss_scale_window: PositiveInt | None = None
    """Short for `fp16.loss_scale_window`: steps without overflow after which the factor doubles.
    Default: 1000."""

    min_scale: PositiveFloat | None = None
    """Short for `fp16.min_loss_scale`: the smallest factor; an overflow at it ends the run. Default: 1."""

    hysteresis: PositiveInt | None = None
    """Short for `fp16.hysteresis`: which overflow halves the factor, and all after it, until the factor
    has doubled again; those before it skip their steps only. Default: 2."""
