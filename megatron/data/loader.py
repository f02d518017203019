"""Whole steps, ready to train on: reads samples, ahead of time where there are workers.

Legend: g = gradient accumulation steps, b = micro-batch size, s = sequence length.

Workers are forked. A spawned one would import the main program, and with it torch and DeepSpeed, for
seconds, on every start and times ranks × workers; a forked one is there in some hundredths. Forking a
process in which gloo, NCCL or OpenMP threads run is safe as long as the child keeps away from what
these threads may hold: a worker does one thing, copying numbers from mapped files into a new tensor
(DataLoader gives it one OpenMP thread); no collective, no accelerator, no logger.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.sample_dataset import Sample, Samples
from megatron.data.samplers import Batch, step_samples
from megatron.errors import DataError, NeoXError
from megatron.runtime.parent import end_with_parent

_SIGNAL_PATIENCE: Final = 1.0  # seconds


@dataclass(frozen=True)
class StepBatch:
    """What one rank needs for one optimizer step.

    Attributes:
        tokens: ``[g, b, s + 1]`` int64; inputs are all but the last.
        loss_mask: ``[g, b, s]`` bool, which predictions count.
        first_sample: the step's first sample, over all ranks.
        num_samples: samples of the step, over all ranks.
        labels: ``[g, b, s]`` int64, ids of the vocabulary also where masked; None where they are the
            tokens that follow.
        documents: where documents begin, if the model is to know; always on the CPU, and always of
            whole sequences.
    """

    tokens: torch.Tensor
    loss_mask: torch.Tensor
    first_sample: int
    num_samples: int
    labels: torch.Tensor | None = None
    documents: DocumentStarts | None = None

    @property
    def inputs(self) -> torch.Tensor:
        """What the model reads, ``[g, b, s]``."""
        return self.tokens[..., :-1]

    @property
    def targets(self) -> torch.Tensor:
        """What it should have predicted, ``[g, b, s]``."""
        return self.tokens[..., 1:] if self.labels is None else self.labels

    def part_of_sequences(self, rank: int, size: int) -> StepBatch:
        """The ``rank``-th of ``size`` equal parts of each sequence: s / size inputs and their targets."""
        if size == 1:
            return self
        length = self.loss_mask.size(-1)
        assert length % size == 0, f"{size} ranks cannot share {length} tokens evenly"
        start, stop = (place * (length // size) for place in (rank, rank + 1))
        labels = None if self.labels is None else self.labels[..., start:stop].contiguous()
        return replace(
            self,
            # The last input's target is the next part's first input.
            tokens=self.tokens[..., start : stop + 1].contiguous(),
            loss_mask=self.loss_mask[..., start:stop].contiguous(),
            labels=labels,
        )

    def pin_memory(self) -> StepBatch:
        """The same in page-locked memory, from where an accelerator copies on its own."""
        return self._with_tensors(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> StepBatch:
        """The same on ``device``; where it is pinned, the copy is not waited for."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def _with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> StepBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors: dict[str, Any] = {
            name: change(value) for name, value in values.items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)


class _Steps(Dataset["StepBatch | str"]):
    """Step i of one data rank, counted from the loader's first; the words of an error as a string."""

    def __init__(
        self,
        dataset: Samples,
        first_sample: int,
        batch: Batch,
        data_rank: int,
        eod_id: int | None,
        boundaries: Boundaries | None,
        sequence_part: tuple[int, int],
        blank: bool,
    ) -> None:
        self._dataset, self._first_sample, self._batch = dataset, first_sample, batch
        self._data_rank, self._eod_id, self._boundaries = data_rank, eod_id, boundaries
        self._sequence_part, self._blank = sequence_part, blank

    def __getitem__(self, step: int) -> StepBatch | str:
        # A DataLoader would wrap a worker's error into its traceback; a user's mistake travels as
        # what it is.
        try:
            return self.read(step).part_of_sequences(*self._sequence_part)
        except NeoXError as error:
            return str(error)

    def read(self, step: int) -> StepBatch:
        """The step's batch, of whole sequences.

        Raises:
            DataError: an id is beyond the vocabulary.
        """
        first = self._first_sample + step * self._batch.global_batch_size
        samples = step_samples(first, self._batch, self._data_rank)
        if self._blank:
            return blank_batch(
                samples.shape,
                self._dataset.seq_length,
                first_sample=first,
                num_samples=self._batch.global_batch_size,
                boundaries=self._boundaries,
            )
        array = np.empty((*samples.shape, self._dataset.seq_length + 1), np.int64)
        labels = np.empty_like(array) if self._dataset.has_labels else None
        lengths = np.empty(samples.shape, np.int64)
        starts: list[list[int]] = []
        for place in np.ndindex(*samples.shape):
            sample = Sample(
                array[place],
                labels=None if labels is None else labels[place],
                starts=None if self._boundaries is None else [],
            )
            self._dataset.read_into(int(samples[place]), sample)
            lengths[place] = sample.length
            if sample.starts is not None:
                starts.append(sample.starts)
        self._check_ids(samples, array, labels)
        tokens = torch.from_numpy(array)
        # A prediction counts where its label is no padding.
        mask = torch.arange(1, tokens.shape[-1]) < torch.from_numpy(lengths)[..., None]
        if self._eod_id is not None:
            # As in GPT-NeoX: what follows the end of a document is not learnt.
            mask &= tokens[..., :-1] != self._eod_id
        targets = None
        if labels is not None:
            targets = torch.from_numpy(labels)[..., 1:]
            mask &= targets >= 0
            targets = targets.clamp(min=0)
        documents = None
        if self._boundaries is not None:
            documents = DocumentStarts.collect(
                starts, samples.shape, self._dataset.seq_length, self._boundaries
            )
        count = self._batch.global_batch_size
        return StepBatch(tokens, mask, first, count, labels=targets, documents=documents)

    def _check_ids(
        self,
        samples: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64] | None,
    ) -> None:
        vocab_size = self._dataset.vocab_size
        if vocab_size is None:
            return
        highest = max(array.max() for array in (tokens, labels) if array is not None)
        if highest >= vocab_size or tokens.min() < 0:
            for number in samples.flat:  # it is in one of them: say where
                self._dataset.check_ids(int(number))


def blank_batch(
    shape: tuple[int, ...],
    seq_length: int,
    *,
    first_sample: int,
    num_samples: int,
    boundaries: Boundaries | None,
) -> StepBatch:
    """A batch of the ``shape`` [g, b] in which nothing counts, for whoever needs to know its shape only."""
    documents = None
    if boundaries is not None:
        starts = [[0]] * int(np.prod(shape))
        documents = DocumentStarts.collect(starts, shape, seq_length, boundaries)
    return StepBatch(
        tokens=torch.zeros(*shape, seq_length + 1, dtype=torch.int64),
        loss_mask=torch.zeros(*shape, seq_length, dtype=torch.bool),
        first_sample=first_sample,
        num_samples=num_samples,
        documents=documents,
    )


class StepLoader(Iterator[StepBatch]):
    """Hands over the steps in order, once. Made by :func:`build_step_loader`.

    :meth:`close` ends the workers; they also end with this process, however it ends. ``with loader:``
    closes it at the end of the block, and a worker that dies meanwhile is a :class:`DataError` there.
    """

    def __init__(
        self,
        steps: _Steps,
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
                multiprocessing_context="fork",
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    steps = _Steps(
        dataset, first_sample, batch, data_rank, eod_id, boundaries, sequence_part, blank
    )
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
