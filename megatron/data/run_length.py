"""``train_epochs``: how many steps read the training data so many times. Arithmetic on a header."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from megatron.data.index_maps import Order, samples_in


@dataclass(frozen=True)
class RunLength:
    """How many steps ``epochs`` epochs are, and why.

    Attributes:
        epochs: as asked for.
        epoch: what one epoch holds, in words.
        samples: whole samples in these epochs.
        global_batch_size: samples of a step.
    """

    epochs: float
    epoch: str
    samples: int
    global_batch_size: int

    @property
    def steps(self) -> int:
        """Whole steps. A step more would begin another epoch."""
        return self.samples // self.global_batch_size

    def explain(self) -> str:
        """The arithmetic in one line."""
        left = self.samples % self.global_batch_size
        rest = f"; {left:,} samples are left over" if left else ""
        return (
            f"train_epochs: {self.epochs:g} × {self.epoch} = {self.samples:,} samples; "
            f"// {self.global_batch_size:,} samples a step = {self.steps:,} steps{rest}"
        )


def samples_of_epochs(tokens: int, seq_length: int, epochs: float, order: Order) -> int:
    """Whole samples that ``epochs`` epochs give, a fraction of one included, and no epoch more."""
    exact = Fraction(str(epochs))
    if order == "neox":
        return max(0, int(exact * tokens) - 1) // seq_length
    return int(exact * samples_in(tokens, seq_length, 1))
