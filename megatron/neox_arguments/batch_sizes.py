"""Samples per step: the one equation between three keys and the world.

train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron.neox_arguments.sections.layout import BatchArgs, ParallelismArgs

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
GLOBAL, MICRO, STEPS = BATCH_KEYS


class BatchMismatch(Exception):
    """The three keys and the world do not fit. ``key`` is the one to look at first."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(frozen=True)
class BatchSizes:
    """Samples of one optimizer step.

    Attributes:
        global_batch_size: samples per optimizer step, over all ranks.
        micro_batch_size: samples per forward pass of one rank.
        gradient_accumulation_steps: forward passes per optimizer step.
        data_parallel_size: ranks that see different samples.
    """

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int

    def explain(self) -> str:
        """The equation with its numbers and keys."""
        return (
            f"{self.global_batch_size} samples per step ({GLOBAL}) = {self.micro_batch_size} ({MICRO}) x "
            f"{self.gradient_accumulation_steps} ({STEPS}) x {self.data_parallel_size} (data-parallel ranks)"
        )


def data_parallel_size(parallelism: ParallelismArgs, world_size: int) -> int:
    """Ranks that see different samples.

    Raises:
        BatchMismatch: the world does not fit the layout.
    """
    needed = parallelism.ranks_per_replica
    if world_size % needed == 0:
        return world_size // needed
    sizes = {
        "pipe_parallel_size": parallelism.pipe_parallel_size,
        "context_parallel_size": parallelism.context_parallel_size,
        "model_parallel_size": parallelism.model_parallel_size,
    }
    factors = [f"{key} {size}" for key, size in sizes.items() if size > 1]
    equation = f"{' x '.join(factors)} = {needed}" if len(factors) > 1 else factors[0]
    what = (
        f"needs {needed} GPUs (or CPU processes), {world_size} exist"
        if world_size < needed
        else f"needs a multiple of {needed} GPUs (or CPU processes), {world_size} is none"
    )
    raise BatchMismatch(
        factors[0].split()[0],
        f"the layout {what}: {equation}. Start {needed}, or a multiple (--num_gpus {needed} in front of "
        f"the script, or num_gpus: {needed}), or change it",
    )


def solve_batch(batch: BatchArgs, ranks: int) -> BatchSizes:
    """The batch equation solved for what is not given.

    Raises:
        BatchMismatch: too little is given, or what is given contradicts itself.
    """
    total, micro, steps = (
        batch.train_batch_size,
        batch.train_micro_batch_size_per_gpu,
        batch.gradient_accumulation_steps,
    )
    if micro is None:
        if total is None:
            raise BatchMismatch(MICRO, f"missing: give {MICRO}, or {GLOBAL}")
        steps = steps or 1
        micro = _whole(MICRO, GLOBAL, total, {STEPS: steps}, ranks)
    elif steps is None:
        steps = 1 if total is None else _whole(STEPS, GLOBAL, total, {MICRO: micro}, ranks)
    product = micro * steps * ranks
    if total is not None and total != product:
        raise BatchMismatch(
            GLOBAL,
            f"{total} is not {MICRO} {micro} x {STEPS} {steps} x data-parallel ranks {ranks} = {product}: "
            "change one, or leave one out and it is computed",
        )
    return BatchSizes(product, micro, steps, ranks)


def _whole(wanted: str, total_key: str, total: int, known: dict[str, int], ranks: int) -> int:
    """``total`` divided by what is known of the right side, which must come out whole."""
    (key, value), divisor = next(iter(known.items())), next(iter(known.values())) * ranks
    if total % divisor:
        raise BatchMismatch(
            total_key,
            f"{total} / ({key} {value} x data-parallel ranks {ranks}) = {total / divisor:g} is no whole "
            f"number of {wanted}: use a multiple of {divisor}, or another number of ranks",
        )
    return total // divisor
