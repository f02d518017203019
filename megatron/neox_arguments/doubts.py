"""What a configuration may mean but probably does not: said by ``--check``, never refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

_SPLITS = ("train", "valid", "test")


def doubts(args: NeoXArgs) -> list[str]:
    """A line for each thing that deserves a second look, with the keys and numbers."""
    return [*_about_the_schedule(args), *_about_the_data(args), *_about_checkpoints(args)]


def doubt_about_sums(args: NeoXArgs, micro_batches: int) -> Iterator[str]:
    """Whether gradients lose digits where they are added up.

    Args:
        args: the configuration.
        micro_batches: of a step, on each rank.
    """
    asked = (args.ds.data_types or {}).get("grad_accum_dtype")
    if args.model.precision == "bfloat16" and micro_batches > 1 and asked != "fp32":
        yield (
            f"data_types: gradients of {micro_batches:,} micro-batches are added up in bf16, which rounds "
            "each sum to 8 bits: more exact, for more memory, with data_types: {grad_accum_dtype: fp32} and "
            "fp32_allreduce: true"
        )


def _about_the_schedule(args: NeoXArgs) -> Iterator[str]:
    steps, schedule = args.training.train_iters, args.lr_schedule
    if not steps:
        return
    decay = schedule.decay_steps(steps)
    warmup = schedule.warmup * decay
    if warmup >= steps:
        yield (
            f"warmup: {schedule.warmup:g} x {decay:,} decay steps = {warmup:,.0f} steps of warm-up, the run "
            f"has {steps:,} (train_iters): the learning rate never reaches {args.optim.lr:g}"
        )
    elif decay > steps and schedule.lr_decay_style != "constant":
        yield (
            f"lr_decay_iters: {decay:,} is beyond train_iters {steps:,}: the run ends before the learning "
            f"rate has come down to min_lr {schedule.min_lr:g}"
        )
    if args.logging.log_interval > steps:
        interval = args.logging.log_interval
        yield f"log_interval: {interval:,} is beyond train_iters {steps:,}: no line of the log"
    if args.optim.lr == 0:
        yield "optimizer.params.lr: is 0: nothing is learnt"


def _about_the_data(args: NeoXArgs) -> Iterator[str]:
    data, training = args.data, args.training
    paths = {name: getattr(data, f"{name}_data_paths") or () for name in _SPLITS}
    for first, second in (("train", "valid"), ("train", "test")):
        same = sorted(set(paths[first]) & set(paths[second]))
        if same:
            yield (
                f"{second}_data_paths: {', '.join(same)} stands in {first}_data_paths too: what is learnt is "
                "scored"
            )
    if training.eval_iters == 0:
        return
    if data.data_path:
        if data.shares[1] == 0:
            yield f'split: "{data.split}" gives validation nothing: there is none'
    elif paths["train"] and not paths["valid"]:
        yield "valid_data_paths: not given: there is no validation"


def _about_checkpoints(args: NeoXArgs) -> Iterator[str]:
    settings, steps = args.checkpointing, args.training.train_iters
    if settings.save is None:
        if settings.checkpoint_factor is not None or settings.extra_save_iters:
            yield "save: not given: nothing is saved, whatever checkpoint_factor says"
        return
    if not steps:
        return
    if settings.checkpoint_factor is None:
        yield "checkpoint_factor: not given: one checkpoint, at the end of the run"
    elif settings.checkpoint_scale == "linear" and settings.checkpoint_factor > steps:
        yield (
            f"checkpoint_factor: {settings.checkpoint_factor:,.0f} is beyond train_iters {steps:,}: one "
            "checkpoint, at the end of the run"
        )
    late = [step for step in settings.extra_save_iters or () if step > steps]
    if late:
        yield f"extra_save_iters: {', '.join(map(str, late))} are beyond train_iters {steps:,}"
