"""Which samples a step reads: arithmetic on the global sample counter, and nothing else.

Sample numbers are positions in a split's order. They depend on how many samples have been consumed,
never on the number of ranks, workers or restarts: a step of B samples reads c … c + B - 1, c being
those consumed before it. Its m-th micro-batch is the next ``micro × dp`` of them, of which data rank
r reads the r-th contiguous part.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Batch(Protocol):
    """The batch equation: global = micro × accumulation × data-parallel."""

    @property
    def global_batch_size(self) -> int: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def gradient_accumulation_steps(self) -> int: ...
    @property
    def data_parallel_size(self) -> int: ...


def step_samples(first_sample: int, batch: Batch, data_rank: int) -> npt.NDArray[np.int64]:
    """The samples that one data rank reads in a step, ``[accumulation, micro]``.

    Args:
        first_sample: samples consumed before the step.
        batch: the batch sizes.
        data_rank: 0 … data_parallel_size - 1.
    """
    micro, ranks = batch.micro_batch_size, batch.data_parallel_size
    starts = first_sample + micro * (
        np.arange(batch.gradient_accumulation_steps, dtype=np.int64) * ranks + data_rank
    )
    return starts[:, None] + np.arange(micro, dtype=np.int64)


def evaluation_first_sample(
    step: int, eval_interval: int, eval_iters: int, global_batch_size: int, *, same: bool
) -> int:
    """The first validation sample of the evaluation after ``step`` steps.

    Args:
        step: steps done.
        eval_interval, eval_iters, global_batch_size: as in the configuration.
        same: ``eval_same_samples``: each evaluation starts at 0.
    """
    return 0 if same else step // eval_interval * eval_iters * global_batch_size
