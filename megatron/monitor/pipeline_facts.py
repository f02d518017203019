"""What a pipeline makes of a configuration: who holds which layers, who waits, who needs most memory."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.monitor.estimates import MemoryEstimate
from megatron.monitor.from_arguments import memory_of
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.pipe_partition import stage_layers


def layers_of_stages(args: NeoXArgs, padded_vocab_size: int) -> tuple[range, ...]:
    """The layers of each stage; without a pipeline there is one."""
    stages = max(1, args.parallelism.pipe_parallel_size)
    method = args.parallelism.pipe_partition_method
    return stage_layers(args.model, stages, method, padded_vocab_size)


def pipeline_text(args: NeoXArgs, batch: BatchSizes | None, padded_vocab_size: int) -> str | None:
    """One line, such as ``4 stages of 11 transformer layers; …``; None without a pipeline."""
    stages = args.parallelism.pipe_parallel_size
    if stages <= 1:
        return None
    blocks = [len(_blocks(args, layers)) for layers in layers_of_stages(args, padded_vocab_size)]
    each = str(blocks[0]) if len(set(blocks)) == 1 else " + ".join(map(str, blocks))
    text = f"{stages} stages of {each} transformer layers"
    if batch is not None:
        micro_batches = batch.gradient_accumulation_steps
        text += (
            f"; with {micro_batches} micro-batches a step each waits "
            f"{bubble(stages, micro_batches):.0%} of the time"
        )
    return text


def bubble(stages: int, micro_batches: int) -> float:
    """Share of a step in which a stage has nothing to do, if all take equally long: (p - 1) / (m + p - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def memory_of_largest_stage(
    args: NeoXArgs,
    batch: BatchSizes,
    padded_vocab_size: int,
    *,
    checkpoint_activations: bool | None = None,
) -> MemoryEstimate:
    """What a rank holds in the middle of a step, where most is held; without a pipeline, each rank.

    Stage k of p keeps the activations of p - k micro-batches, or of all if there are fewer.

    Args:
        args: the configuration.
        batch: samples per step.
        padded_vocab_size: rows of the embedding over all ranks.
        checkpoint_activations: in place of the configuration's, to compare.
    """
    model, ranks = args.model, args.parallelism.model_parallel_size
    counts = model.layer_parameter_counts(padded_vocab_size)
    stages = layers_of_stages(args, padded_vocab_size)
    found: list[MemoryEstimate] = []
    for number, layers in enumerate(stages):
        is_last = number + 1 == len(stages)
        parameters = sum(counts[layer] for layer in layers)
        if is_last and number > 0 and not model.no_weight_tying:
            parameters += padded_vocab_size * model.hidden_size
        found.append(
            memory_of(
                args,
                batch,
                parameters=parameters // ranks,
                padded_vocab_size=padded_vocab_size // ranks if is_last else 0,
                checkpoint_activations=checkpoint_activations,
                num_layers=len(_blocks(args, layers)),
                in_flight=min(len(stages) - number, batch.gradient_accumulation_steps),
            )
        )
    return max(found, key=lambda estimate: estimate.total)


def _blocks(args: NeoXArgs, layers: Sequence[int]) -> list[int]:
    """Those of ``layers`` that are transformer layers, behind the embedding and a function."""
    return [layer for layer in layers if 2 <= layer < 2 + args.model.num_layers]
