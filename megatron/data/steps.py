"""From samples to the batch of a step: tokens, which predictions count, and where documents begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.sample_dataset import Sample, Samples
from megatron.data.samplers import Batch, step_samples
from megatron.data.step_batch import StepBatch, blank_batch
from megatron.errors import NeoXError


@dataclass(frozen=True)
class Steps(Dataset["StepBatch | str"]):
    """Step i of one data rank, counted from the first; the words of an error as a string.

    Attributes: see :func:`megatron.data.loader.build_step_loader`.
    """

    dataset: Samples
    first_sample: int
    batch: Batch
    data_rank: int
    eod_id: int | None = None
    boundaries: Boundaries | None = None
    sequence_part: tuple[int, int] = (0, 1)
    blank: bool = False

    def __getitem__(self, step: int) -> StepBatch | str:
        # A DataLoader would wrap a worker's error into its traceback; a user's mistake travels as
        # what it is.
        try:
            return self.read(step).part_of_sequences(*self.sequence_part)
        except NeoXError as error:
            return str(error)

    def read(self, step: int) -> StepBatch:
        """The step's batch, of whole sequences.

        Raises:
            DataError: an id is beyond the vocabulary.
        """
        first = self.first_sample + step * self.batch.global_batch_size
        samples = step_samples(first, self.batch, self.data_rank)
        if self.blank:
            return blank_batch(
                samples.shape,
                self.dataset.seq_length,
                first_sample=first,
                num_samples=self.batch.global_batch_size,
                boundaries=self.boundaries,
            )
        array = np.empty((*samples.shape, self.dataset.seq_length + 1), np.int64)
        labels = np.empty_like(array) if self.dataset.has_labels else None
        lengths = np.empty(samples.shape, np.int64)
        starts: list[list[int]] = []
        for place in np.ndindex(*samples.shape):
            sample = Sample(
                array[place],
                labels=None if labels is None else labels[place],
                starts=None if self.boundaries is None else [],
            )
            self.dataset.read_into(int(samples[place]), sample)
            lengths[place] = sample.length
            if sample.starts is not None:
                starts.append(sample.starts)
        self._check_ids(samples, array, labels)
        tokens = torch.from_numpy(array)
        # A prediction counts where its label is no padding.
        mask = torch.arange(1, tokens.shape[-1]) < torch.from_numpy(lengths)[..., None]
        if self.eod_id is not None:
            # As in GPT-NeoX: what follows the end of a document is not learnt.
            mask &= tokens[..., :-1] != self.eod_id
        targets = None
        if labels is not None:
            targets = torch.from_numpy(labels)[..., 1:]
            mask &= targets >= 0
            targets = targets.clamp(min=0)
        documents = None
        if self.boundaries is not None:
            documents = DocumentStarts.collect(
                starts, samples.shape, self.dataset.seq_length, self.boundaries
            )
        count = self.batch.global_batch_size
        return StepBatch(tokens, mask, first, count, labels=targets, documents=documents)

    def _check_ids(
        self,
        samples: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64] | None,
    ) -> None:
        vocab_size = self.dataset.vocab_size
        if vocab_size is None:
            return
        highest = max(array.max() for array in (tokens, labels) if array is not None)
        if highest >= vocab_size or tokens.min() < 0:
            for number in samples.flat:  # it is in one of them: say where
                self.dataset.check_ids(int(number))
