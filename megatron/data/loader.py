"""Whole steps, ready to train on: reads them ahead of time where there are workers.

Workers are forked. A spawned one would import the main program, and with it torch and DeepSpeed, for
seconds, on every start and times ranks × workers; a forked one is there in some hundredths. Where gloo,
NCCL or OpenMP threads run, a fork may find their locks held: a worker keeps away from them, for it does
one thing, copying numbers from mapped files into a new tensor (DataLoader gives it one OpenMP thread); no
collective, no accelerator, no logger. What Python itself waits for at its start, see
:mod:`megatron.runtime.forking`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from megatron.data.boundaries import Boundaries
from megatron.data.sample_dataset import Samples
from megatron.data.samplers import Batch
from megatron.data.step_batch import StepBatch
from megatron.data.steps import Steps
from megatron.errors import DataError
from megatron.runtime.forking import SureForkContext
from megatron.runtime.parent import end_with_parent

_SIGNAL_PATIENCE: Final = 1.0  # seconds


class StepLoader(Iterator[StepBatch]):
    """Hands over the steps in order, once. Made by :func:`build_step_loader`.

    :meth:`close` ends the workers; they also end with this process, however it ends. ``with loader:``
    closes it at the end of the block, and a worker that dies meanwhile is a :class:`DataError` there.
    """

    def __init__(
        self,
        steps: Steps,
        num_steps: int,
        num_workers: int,
        pin_memory: bool,
        check_files: Callable[[], None] | None = None,
    ) -> None:
        self._pin_memory, self._check_files = pin_memory, check_files
        self._batches: Iterator[StepBatch | str] | None
        if num_workers == 0:
            self._batches = (steps[step] for step in range(num_steps))
            return
        self._batches = iter(
            DataLoader(
                steps,
                batch_size=None,
                sampler=range(num_steps),
                num_workers=min(num_workers, max(1, num_steps)),
                collate_fn=_unchanged,
                worker_init_fn=_start_worker,
                multiprocessing_context=SureForkContext(),
                # Its own: without one, starting workers would draw from the default generator and
                # shift the model's dropout.
                generator=torch.Generator(),
            )
        )

    def __iter__(self) -> StepLoader:
        return self

    def __next__(self) -> StepBatch:
        if self._batches is None:
            raise StopIteration
        batch = next(self._batches)
        if isinstance(batch, str):
            raise DataError(batch)
        return batch.pin_memory() if self._pin_memory else batch

    def __enter__(self) -> StepLoader:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        found = _lost_worker(error)
        self.close()
        if found is not None:
            if self._check_files is not None:
                self._check_files()  # torch would blame /dev/shm
            raise DataError(
                f"num_workers: a process that reads data ahead is gone\n  found: {found}\n"
                "  often: the system ended it because memory (or /dev/shm) ran out\n"
                "  to do: lower num_workers (0 needs none), or give the job more memory"
            ) from error

    def close(self) -> None:
        """End the workers. There are no batches afterwards."""
        batches, self._batches = self._batches, None
        # torch's iterator ends them when it is dropped, but an error's traceback would keep it alive,
        # and with it the workers: they leave signals to their parent, which would wait for them.
        end_workers = getattr(batches, "_shutdown_workers", None)
        if end_workers is not None:
            end_workers()


def build_step_loader(
    dataset: Samples,
    *,
    first_sample: int,
    num_steps: int,
    batch: Batch,
    data_rank: int,
    num_workers: int,
    eod_id: int | None = None,
    boundaries: Boundaries | None = None,
    sequence_part: tuple[int, int] = (0, 1),
    blank: bool = False,
    pin_memory: bool = False,
    check_files: Callable[[], None] | None = None,
) -> StepLoader:
    """A loader of ``num_steps`` steps, the first of which begins with sample ``first_sample``.

    Args:
        dataset: the split.
        first_sample: samples consumed before; skipping them costs nothing.
        num_steps: steps to hand over.
        batch: the batch sizes.
        data_rank: this rank among those that read different samples.
        num_workers: processes that read ahead; 0 reads when asked.
        eod_id: predictions from this token are masked; None masks nothing.
        boundaries: what the model does where a document begins; None does nothing.
        sequence_part: (rank, size) of the context-parallel ranks, each of which gets a part of each
            sequence.
        blank: read nothing: batches of the same shapes in which nothing counts.
        pin_memory: hand over page-locked memory.
        check_files: raises what is wrong with the files, if they are why a worker has died.

    Raises:
        DataError: the split has fewer samples.
    """
    stop = first_sample + num_steps * batch.global_batch_size
    if stop > len(dataset):
        raise DataError(
            f"{dataset.label} has {len(dataset):,} samples, the samples "
            f"{first_sample:,} to {stop - 1:,} are asked for: a checkpoint of a longer run, or of another "
            "batch size or evaluation interval?\n"
            "  to do: give the batch size of before (--set values belong to the command), or use "
            "data_order: epochs from the start",
            everywhere=True,
        )
    steps = Steps(dataset, first_sample, batch, data_rank, eod_id, boundaries, sequence_part, blank)
    num_workers = 0 if blank else num_workers
    return StepLoader(steps, num_steps, num_workers, pin_memory, check_files)


def _lost_worker(error: BaseException | None) -> BaseException | None:
    """What torch says of a worker that has died, if that is why ``error`` was raised.

    It says so out of a signal handler, wherever the main thread happens to be: a moment after a
    broken connection, where the worker died while it handed over a batch.
    """
    if isinstance(error, ConnectionError | EOFError):
        try:
            time.sleep(_SIGNAL_PATIENCE)
        except RuntimeError as signalled:
            error = signalled
    says_so = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")
    return error if says_so else None


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(number: int) -> None:
    """Set up a worker: it ends with its parent, and leaves signals to stop to it."""
    end_with_parent(signal.SIGKILL)
    # A scheduler or Ctrl-C signals all processes of a job; the parent finishes its step and needs the
    # workers until then. They end when it closes the loader.
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(stop, signal.SIG_IGN)
