"""What a run asks of its data."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.data.progress import Progress
from megatron.data.sources import DataSettings
from megatron.data.splits import SampleCounts


@dataclass(frozen=True)
class DataRequest:
    """Which data, how it is cut into samples, and how many of these.

    Attributes:
        settings: which data, and how.
        seq_length: tokens per sample, less one.
        seed: of the order.
        wanted: samples that the run takes from each split.
        vocab_size: ids must be below it; None checks nothing.
        data_parallel_size: ranks that read different samples.
        train_epochs: what the samples of the training split were counted by, if so.
        pad_id: fills samples that are shorter than the others.
        progress: where a run that is resumed stands in its training data.
    """

    settings: DataSettings
    seq_length: int
    seed: int
    wanted: SampleCounts
    vocab_size: int | None = None
    data_parallel_size: int = 1
    train_epochs: float | None = None
    pad_id: int = 0
    progress: Progress | None = None
