"""Which samples an evaluation reads, and its loss.

Evaluation number e = step // eval_interval reads the samples from e × eval_iters × B on, so that a
resumed run evaluates on the same ones; ``eval_same_samples`` reads from 0 each time.
"""

from __future__ import annotations

from megatron.data.datasets import DataSplits, Samples
from megatron.data.samplers import evaluation_first_sample
from megatron.model import GPT2Model
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.training.batches import batches_of
from megatron.training.evaluate import total_loss
from megatron.training.setup import Parts


class EvaluationPlan:
    """The evaluations of one run.

    Attributes:
        validates: whether there is anything to validate on, and it is wanted.
        tests: likewise for the test split.

    Args:
        args: the configuration.
        parts: the run's parts.
        batch: samples of a step, and how they are spread.
        data: its splits; an empty one is None and is never evaluated.
        model: the model under the engine.
    """

    def __init__(
        self,
        args: NeoXArgs,
        parts: Parts,
        batch: BatchSizes,
        data: DataSplits,
        model: GPT2Model,
    ) -> None:
        self._args = args
        self._parts = parts
        self._batch = batch
        self._data = data
        self._model = model
        wanted = args.training.eval_iters > 0
        self.validates = wanted and data.valid is not None and args.training.do_valid is not False
        self.tests = wanted and data.test is not None and args.training.do_test is not False

    def validation_loss(self, step: int) -> float:
        """Nats per token on the validation split at ``step``; only where ``validates``."""
        training = self._args.training
        first = evaluation_first_sample(
            step,
            training.eval_interval,
            training.eval_iters,
            self._batch.global_batch_size,
            same=self._args.data.eval_same_samples,
        )
        return self._loss(self._data.valid, first)

    def test_loss(self) -> float:
        """Nats per token on the test split; only where ``tests``."""
        return self._loss(self._data.test, 0)

    def _loss(self, dataset: Samples | None, first_sample: int) -> float:
        assert dataset is not None
        loader = batches_of(
            dataset,
            self._args,
            self._parts,
            self._batch,
            first_sample=first_sample,
            num_steps=self._args.training.eval_iters,
            blank=not self._model.reads_data,
        )
        try:
            return total_loss(self._model, loader, self._parts.groups, self._parts.device).mean
        finally:
            loader.close()
