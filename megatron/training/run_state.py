"""What changes while a run goes on; everything else is frozen in ``NeoXArgs``.

All of it goes into the checkpoint as JSON, so that a resumed run continues as if it had never
stopped, down to the mean that is half-way through a logging interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class RunState:
    """Attributes:
    step: optimizer steps done; also the 0-based number of the next one.
    consumed_samples: training samples read so far, over all ranks and restarts.
    loss_sum: sum of the step losses since the last log line, as far as they are numbers.
    steps_since_log: how many losses are in ``loss_sum``.
    skipped_steps: those of ``step`` whose gradients overflowed in fp16, and which changed nothing.
    skipped_since_log: those since the last log line.
    skipped_in_a_row: those since the last step that was not skipped.
    """

    step: int = 0
    consumed_samples: int = 0
    loss_sum: float = 0.0
    steps_since_log: int = 0
    skipped_steps: int = 0
    skipped_since_log: int = 0
    skipped_in_a_row: int = 0

    @property
    def updates(self) -> int:
        """How often the weights have changed, which is what the learning rate follows."""
        return self.step - self.skipped_steps

    def after_step(self, loss: float, samples: int, *, skipped: bool = False) -> None:
        """Count one finished step."""
        self.step += 1
        self.consumed_samples += samples
        self.skipped_steps += skipped
        self.skipped_since_log += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if math.isfinite(loss):
            self.loss_sum += loss
            self.steps_since_log += 1

    def take_interval(self) -> tuple[float, int]:
        """The mean loss and the number of skipped steps since the last call; the next interval starts.

        Where no loss was a number, neither is the mean.
        """
        mean = self.loss_sum / self.steps_since_log if self.steps_since_log else math.nan
        skipped = self.skipped_since_log
        self.loss_sum, self.steps_since_log, self.skipped_since_log = 0.0, 0, 0
        return mean, skipped

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> RunState:
        """The state that :meth:`as_dict` gave; keys of later versions are left alone."""
        return RunState(
            step=int(stored["step"]),
            consumed_samples=int(stored["consumed_samples"]),
            loss_sum=float(stored.get("loss_sum", 0.0)),
            steps_since_log=int(stored.get("steps_since_log", 0)),
            skipped_steps=int(stored.get("skipped_steps", 0)),
            skipped_since_log=int(stored.get("skipped_since_log", 0)),
            skipped_in_a_row=int(stored.get("skipped_in_a_row", 0)),
        )
