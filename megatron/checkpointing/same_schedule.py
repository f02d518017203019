"""Whether a run learns at the rates that the checkpoint's run would have learnt at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from megatron.checkpointing.fitting import refusal
from megatron.checkpointing.looking import CheckpointInfo
from megatron.data.split_plan import describe_difference


class ScheduleChoice(Protocol):
    """GPT-NeoX's two keys for a schedule that differs from the checkpoint's."""

    @property
    def override_lr_scheduler(self) -> bool: ...
    @property
    def use_checkpoint_lr_scheduler(self) -> bool: ...


def check_same_schedule(
    found: CheckpointInfo, schedule: Mapping[str, Any], choice: ScheduleChoice
) -> None:
    """Refuse a silently changed learning-rate schedule.

    Args:
        found: the checkpoint that a run goes on from.
        schedule: the run's own, as a checkpoint keeps it.
        choice: which of two different ones counts.

    Raises:
        CheckpointError: the schedules differ and the user has not said which one counts.
    """
    stored = found.state.get("lr_schedule")
    said = choice.override_lr_scheduler or choice.use_checkpoint_lr_scheduler
    if stored is None or stored == schedule or said:
        return
    raise refusal(
        found,
        "its learning-rate schedule differs from the configuration's",
        describe_difference(stored, schedule),
        "set override_lr_scheduler: true to follow the configuration from here on, or "
        "use_checkpoint_lr_scheduler: true to keep the checkpoint's",
    )
