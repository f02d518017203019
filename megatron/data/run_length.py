"""``train_epochs``: how many steps read the training data so many times. Arithmetic on a header."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from megatron.data.index_maps import Order, samples_in
from megatron.data.plan import DataSettings, open_data
from megatron.data.splits import split_boundaries
from megatron.errors import DataError, NeoXError
from megatron.runtime.world import World


@dataclass(frozen=True)
class RunLength:
    """How many steps ``epochs`` epochs are, and why.

    Attributes:
        epochs: as asked for.
        tokens: of one epoch.
        samples: whole samples in these epochs.
        global_batch_size: samples of a step.
    """

    epochs: float
    tokens: int
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
            f"train_epochs: {self.epochs:g} × {self.tokens:,} tokens = {self.samples:,} samples; "
            f"// {self.global_batch_size:,} samples a step = {self.steps:,} steps{rest}"
        )


def samples_of_epochs(tokens: int, seq_length: int, epochs: float, order: Order) -> int:
    """Whole samples that ``epochs`` epochs give, a fraction of one included, and no epoch more."""
    exact = Fraction(str(epochs))
    if order == "neox":
        return max(0, int(exact * tokens) - 1) // seq_length
    return int(exact * samples_in(tokens, seq_length, 1))


def run_length(
    settings: DataSettings,
    *,
    epochs: float,
    seq_length: int,
    global_batch_size: int,
    world: World,
) -> RunLength:
    """Look at the training data on the first rank and tell all. All ranks call.

    Raises:
        DataError: the data is missing or damaged, or not enough for one step.
    """
    found, failure = None, None
    if world.is_first:
        try:
            found = _measure(settings, epochs, seq_length, global_batch_size)
        except (NeoXError, OSError) as error:
            failure = str(error)
    found, failure = world.broadcast((found, failure))
    if failure is not None:
        raise DataError(failure, everywhere=True)
    assert found is not None
    return found


def _measure(
    settings: DataSettings, epochs: float, seq_length: int, global_batch_size: int
) -> RunLength:
    data = open_data(settings)
    first, stop = split_boundaries(settings.split, len(data))[:2]
    tokens = data.tokens_between(first, stop)
    samples = samples_of_epochs(tokens, seq_length, epochs, settings.data_order)
    length = RunLength(epochs, tokens, samples, global_batch_size)
    if length.steps == 0:
        raise DataError(
            f"{length.explain()}: not one step\n"
            "  to do: use more text, a larger share for training, more epochs or a smaller batch"
        )
    return length
