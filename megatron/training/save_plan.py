"""After which steps a checkpoint is written."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal


def is_save_step(
    step: int,
    *,
    factor: int | float | None,
    scale: Literal["linear", "log"],
    extra: Collection[int] = (),
) -> bool:
    """Whether a checkpoint is due after ``step`` steps (1 is the first).

    Args:
        factor: ``linear``: every ``factor`` steps. ``log``: after the steps 1, f, f², … rounded down.
            None: only where ``extra`` says so.
        scale: which of the two.
        extra: further steps.
    """
    if step in extra:
        return True
    if not factor:
        return False
    if scale == "linear":
        return step % int(factor) == 0
    # Powers are few: walking up to the step is exact where a logarithm would be off by one ulp.
    power = 1.0
    while int(power) < step:
        power *= factor
    return int(power) == step
