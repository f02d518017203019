"""Soft prompts: what cannot have vectors in front of a sample, or nothing but these to train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.rules.rule import Finding, Rules

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()
_KEY = "soft_prompt_tuning"


@RULES.about(
    _KEY,
    "pipe_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "model_parallel_size",
)
def _samples_are_in_one_place(args: NeoXArgs) -> Iterator[Finding]:
    if args.variants.soft_prompt is None:
        return
    layout = args.parallelism
    if layout.pipe_parallel_size > 0:
        yield (
            _KEY,
            "the vectors are at one end of a pipeline, and its other stages have nothing to train: use "
            "pipe_parallel_size: 0",
        )
    if layout.context_parallel_size > 1 or (
        layout.sequence_parallel and layout.model_parallel_size > 1
    ):
        key = "context_parallel_size" if layout.context_parallel_size > 1 else "sequence_parallel"
        yield (
            _KEY,
            f"{key} gives each rank as many tokens of a sample, which the vectors in front make longer: take "
            "it out",
        )


@RULES.about(_KEY, "reset_attention_mask", "reset_position_ids")
def _every_text_sees_them(args: NeoXArgs) -> Iterator[Finding]:
    for key in ("reset_attention_mask", "reset_position_ids"):
        if args.variants.soft_prompt is not None and getattr(args.data, key):
            yield (
                _KEY,
                f"the vectors are in front of a sample, and with {key} only its first document would have "
                "them: take that out, or use pack_impl: unpacked",
            )


@RULES.about(_KEY, "zero_optimization", "zero_stage", "reshape_on_load")
def _the_rest_stays_whole(args: NeoXArgs) -> Iterator[Finding]:
    if args.variants.soft_prompt is None:
        return
    if args.optim.zero_stage == 3:
        yield (
            _KEY,
            "with ZeRO stage 3 frozen weights are cut and gathered like others; what an optimizer keeps is "
            "small here: use stage 0 to 2, and model_parallel_size for large models",
        )
    if args.checkpointing.reshape_on_load:
        yield (
            _KEY,
            "a state in which most weights are frozen cannot be fitted to another layout: take "
            "reshape_on_load out, or go on from the weights with finetune: true",
        )
