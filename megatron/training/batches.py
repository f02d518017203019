"""The batches that a rank reads of a split, made alike for training, evaluation and measurements."""

from __future__ import annotations

from typing import Any

from megatron.data.boundaries import Boundaries
from megatron.data.datasets import Samples
from megatron.data.loader import StepLoader, build_step_loader
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.training.setup import Parts


def batches_of(
    dataset: Samples,
    args: NeoXArgs,
    parts: Parts,
    batch: BatchSizes,
    *,
    first_sample: int,
    num_steps: int,
    **how: Any,
) -> StepLoader:
    """This rank's part of ``num_steps`` steps; what it predicts and sees is what ``args`` say.

    Args:
        dataset: the split.
        args: the configuration.
        parts: the run's parts.
        batch: samples of a step, and how they are spread.
        first_sample: samples of the split before the first step.
        num_steps: steps to read.
        how: further arguments of :func:`megatron.data.loader.build_step_loader`; by default this
            process reads when it is asked, because starting workers takes longer than a few steps.
    """
    place = parts.groups.place
    return build_step_loader(
        dataset,
        first_sample=first_sample,
        num_steps=num_steps,
        batch=batch,
        data_rank=place.data,
        eod_id=parts.tokenizer.eod if args.data.eod_mask_loss else None,
        boundaries=Boundaries.of(args.data),
        sequence_part=(place.context, parts.groups.grid.context),
        **({"num_workers": 0} | how),
    )
