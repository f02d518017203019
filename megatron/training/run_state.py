"""What changes while a run goes on; everything else is frozen in ``NeoXArgs``.

All of it goes into the checkpoint as JSON, so that a resumed run continues as if it had never
stopped, down to the mean that is half-way through a logging interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class RunState:
    """Attributes:
    step: optimizer steps done; also the 0-based number of the next one.
    consumed_samples: training samples read so far, over all ranks and restarts.
    loss_sum: sum of the step losses since the last log line.
    steps_since_log: how many losses are in ``loss_sum``.
    """

    step: int = 0
    consumed_samples: int = 0
    loss_sum: float = 0.0
    steps_since_log: int = 0

    def after_step(self, loss: float, samples: int) -> None:
        """Count one finished step."""
        self.step += 1
        self.consumed_samples += samples
        self.loss_sum += loss
        self.steps_since_log += 1

    def take_mean_loss(self) -> float:
        """The mean loss since the last call, which starts the next interval."""
        mean = self.loss_sum / max(1, self.steps_since_log)
        self.loss_sum, self.steps_since_log = 0.0, 0
        return mean

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
        )
