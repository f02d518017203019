"""``train_epochs``: how many steps read the training data so many times."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.data.sources import (
    DataSettings,
    count_of,
    documents_of,
    open_source,
    paths_of,
    store_of,
)
from megatron.errors import DataError, NeoXError
from megatron.runtime.world import World


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


def run_length(
    settings: DataSettings,
    *,
    epochs: float,
    seq_length: int,
    seed: int,
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
            found = _measure(settings, epochs, seq_length, seed, global_batch_size)
        except (NeoXError, OSError) as error:
            failure = str(error)
    found, failure = world.broadcast((found, failure))
    if failure is not None:
        raise DataError(failure, everywhere=True)
    assert found is not None
    return found


def _measure(
    settings: DataSettings, epochs: float, seq_length: int, seed: int, global_batch_size: int
) -> RunLength:
    store = store_of(settings)
    tokens, counts = 0, []
    for path in paths_of(settings, "train"):
        data = open_source(settings, path)
        first, stop = documents_of(settings, "train", data)
        tokens += data.tokens_between(first, stop)
        counts.append(
            count_of(settings, store, data, first, stop, seq_length=seq_length, seed=seed)
        )
    epoch = f"{tokens:,} tokens"
    if settings.pack_impl != "packed":
        epoch = f"{sum(count.per_epoch for count in counts):,} samples ({settings.pack_impl})"
    samples = sum(count.in_epochs(epochs) for count in counts)
    length = RunLength(epochs, epoch, samples, global_batch_size)
    if length.steps == 0:
        raise DataError(
            f"{length.explain()}: not one step\n"
            "  to do: use more text, a larger share for training, more epochs or a smaller batch"
        )
    return length
