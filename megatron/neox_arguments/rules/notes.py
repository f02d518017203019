"""What a run says once: written keys that are without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.nested_keys import NOT_DEEPSPEEDS
from megatron.neox_arguments.rules.mup import MULTIPLIERS
from megatron.neox_arguments.sections.positions import ALL_SCALING_KEYS, SCALING_KEYS

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs
    from megatron.neox_arguments.sections import ModelArgs

# What DeepSpeed does unless it is told otherwise, which GPT-NeoX's files write out.
_LOSS_SCALING = {"loss_scale": 0, "loss_scale_window": 1000, "min_loss_scale": 1, "hysteresis": 2}


def notes(args: NeoXArgs) -> Iterator[str]:
    """The lines, in no order that matters."""
    model = args.model
    if args.parallelism.sequence_parallel and args.parallelism.model_parallel_size == 1:
        yield "ignored: sequence_parallel (there is one tensor-parallel rank)"
    yield from _notes_on_recomputation(args)
    if args.parallelism.pipe_parallel_size > 0 and args.logging.wall_clock_breakdown:
        yield "ignored: wall_clock_breakdown (DeepSpeed's timers do not run in its pipeline engine)"
    scaling = args.ds.fp16 or {}
    if model.precision != "fp16" and "enabled" not in scaling:
        asked = [key for key, value in scaling.items() if value != _LOSS_SCALING.get(key)]
        if asked:
            keys = ", ".join(f"fp16.{key}" for key in asked)
            yield f"ignored: {keys} (precision is {model.precision}: only fp16 scales the loss)"
    for group, foreign in NOT_DEEPSPEEDS.items():
        written = [f"{group}.{key}" for key in getattr(args.ds, group) or {} if key in foreign]
        if written:
            yield f"ignored: {', '.join(written)} (DeepSpeed has no such option)"
    if args.data.pack_impl == "packed" and not args.data.allow_chopped:
        yield "ignored: allow_chopped (pack_impl: packed cuts documents wherever a sample ends)"
    yield from _notes_on_positions(model)
    if not args.mup.use_mup:
        yield from _ignored(args.mup, MULTIPLIERS, "use_mup is false")
    if model.bias_gelu_fusion and model.activation != "gelu":
        yield f"ignored: bias_gelu_fusion (activation is {model.activation})"
    elif model.bias_gelu_fusion and model.gelu_form is not None:
        yield f"ignored: bias_gelu_fusion (gelu_form is {model.gelu_form})"


def _notes_on_positions(model: ModelArgs) -> Iterator[str]:
    kind = f"pos_emb is {model.pos_emb}"
    if model.pos_emb != "rpe":
        yield from _ignored(model, ("rpe_num_buckets", "rpe_max_distance"), kind)
    if model.pos_emb != "rotary":
        yield from _ignored(model, ("rotary_pct", "rotary_emb_base"), kind)
    used = SCALING_KEYS[model.rotary_scaling]
    unused = (key for key in ALL_SCALING_KEYS if key not in used)
    yield from _ignored(model, unused, f"rotary_scaling is {model.rotary_scaling}")


def _ignored(section: object, keys: Iterable[str], why: str) -> Iterator[str]:
    """The line about those of ``keys`` that have another value than their default."""
    asked = [key for key in keys if getattr(section, key) != getattr(type(section), key)]
    if asked:
        yield f"ignored: {', '.join(asked)} ({why})"


def _notes_on_recomputation(args: NeoXArgs) -> Iterator[str]:
    asked = [
        key
        for key in ("partition_activations", "checkpoint_in_cpu")
        if getattr(args.recomputation, key)
    ]
    if asked and not args.training.checkpoint_activations:
        yield f"ignored: {', '.join(asked)} (checkpoint_activations is false: nothing is recomputed)"
    elif "partition_activations" in asked and args.parallelism.model_parallel_size == 1:
        yield "ignored: partition_activations (there is one tensor-parallel rank)"
    elif "partition_activations" in asked and args.parallelism.sequence_parallel:
        yield "ignored: partition_activations (sequence_parallel has split the activations already)"
