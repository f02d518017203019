"""The learning rate as a pure function of the step: nothing to save, nothing to restore.

GPT-NeoX's formulas (2.0, ``AnnealingLR`` as of 2025), but for the line: there it heads for 0 and stays
at ``min_lr`` when it gets there, here it reaches ``min_lr`` at the schedule's end. With N the schedule's
length in steps and w = warmup × N (not rounded), the 0-based step k learns at

- k ≤ w:  lr × max(1, k) / w
- k > w:  with t = min(1, (k − w) / (N − w)), never below ``min_lr``,
  ``constant``: lr · ``linear``: from lr to min_lr along a line · ``cosine``: from lr to min_lr along
  half a cosine (SGDR, arXiv:1608.03983) · ``exponential``: lr × exp(−0.693 t), half of lr at the end.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from megatron.neox_arguments.sections import LRScheduleArgs

Style = Literal["constant", "linear", "cosine", "exponential"]


@dataclass(frozen=True)
class LRSchedule:
    """Attributes: ``lr`` the highest and ``min_lr`` the lowest rate after warm-up, ``length`` N in
    steps, ``warmup`` the share of N that is warm-up, ``style`` the decay after it."""

    lr: float
    min_lr: float
    length: int
    warmup: float
    style: Style

    @staticmethod
    def of(asked: LRScheduleArgs, *, lr: float, train_iters: int) -> LRSchedule:
        """The rates of a run of ``train_iters`` steps whose highest is ``lr``."""
        return LRSchedule(
            lr=lr,
            min_lr=asked.min_lr,
            length=asked.decay_steps(train_iters),
            warmup=asked.warmup,
            style=asked.lr_decay_style,
        )

    def at(self, step: int) -> float:
        """The learning rate of the 0-based ``step``; after the end the last value stays."""
        warmup_steps = self.warmup * self.length
        if warmup_steps > 0 and step <= warmup_steps:
            # Less than one step of warm-up must not raise the first rate above the highest.
            return min(self.lr, self.lr * max(1, step) / warmup_steps)
        decay_steps = self.length - warmup_steps
        t = min(1.0, (step - warmup_steps) / decay_steps) if decay_steps > 0 else 1.0
        if self.style == "constant":
            rate = self.lr
        elif self.style == "linear":
            rate = self.min_lr + (self.lr - self.min_lr) * (1.0 - t)
        elif self.style == "cosine":
            rate = self.min_lr + (self.lr - self.min_lr) * (1.0 + math.cos(math.pi * t)) / 2.0
        else:
            rate = self.lr * math.exp(-0.693 * t)
        return max(rate, self.min_lr)

    def as_dict(self) -> dict[str, float | int | str]:
        """For the checkpoint, so that a resume can tell whether the schedule was changed."""
        return asdict(self)
