"""How ranks share the model, the sequences and the layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.pipe_partition import PartitionError, stage_layers
from megatron.neox_arguments.problems import shown
from megatron.neox_arguments.rules.rule import REQUIRED, Finding, Rules

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()


@RULES.about("pipe_parallel_size")
def _layout_is_here(args: NeoXArgs) -> Iterator[Finding]:
    pipe = args.parallelism.pipe_parallel_size
    expected = args.expected.get("is_pipe_parallel")
    if expected is not None and expected != (pipe > 0):
        yield (
            "is_pipe_parallel",
            f"is {shown(expected)}, but pipe_parallel_size is {pipe}: take it out",
        )


@RULES.about("pipe_parallel_size", "pipe_partition_method", "head_dim", *REQUIRED)
def _every_stage_has_layers(args: NeoXArgs) -> Iterator[Finding]:
    parallelism = args.parallelism
    if parallelism.pipe_parallel_size == 0 or not args.model.heads_are_whole:
        return
    rows = args.expected.get("padded_vocab_size") or 0
    try:
        stage_layers(
            args.model, parallelism.pipe_parallel_size, parallelism.pipe_partition_method, int(rows)
        )
    except PartitionError as error:
        yield error.key, str(error)


@RULES.about("pipe_parallel_size", "use_node_local_storage", "checkpoint")
def _stages_save_on_one_disk(args: NeoXArgs) -> Iterator[Finding]:
    if args.parallelism.pipe_parallel_size > 0 and args.checkpointing.use_node_local_storage:
        yield (
            "use_node_local_storage",
            "is true, but each stage of a pipeline writes its part once, where all must find it: save on a "
            "file system that all nodes share, or use pipe_parallel_size: 0",
        )


@RULES.about("deepspeed_extra_args", "sequence_parallel", "model_parallel_size")
def _stages_exchange_what_they_have(args: NeoXArgs) -> Iterator[Finding]:
    if not (args.parallelism.sequence_parallel and args.parallelism.model_parallel_size > 1):
        return
    for key, value in ((args.ds_extras.deepspeed_extra_args or {}).get("pipeline") or {}).items():
        if value:
            yield (
                f"deepspeed_extra_args.pipeline.{key}",
                "splits among tensor-parallel ranks what sequence_parallel has split already: take it out",
            )


@RULES.about("flops_profiler", "pipe_parallel_size")
def _profiled_in_one_piece(args: NeoXArgs) -> Iterator[Finding]:
    stages = args.parallelism.pipe_parallel_size
    if stages > 1 and (args.ds.flops_profiler or {}).get("enabled"):
        yield (
            "flops_profiler.enabled",
            f"DeepSpeed's timers stop a pipeline of {stages} stages (pipe_parallel_size): take it out, or "
            "profile a run with pipe_parallel_size: 0",
        )


@RULES.about("model_parallel_size", "num_attention_heads", "hidden_size", "head_dim")
def _tensor_parallel_ranks_share_evenly(args: NeoXArgs) -> Iterator[Finding]:
    model, ranks = args.model, args.parallelism.model_parallel_size
    if not model.heads_are_whole:
        return  # _heads_fit says so
    for key, size, what in (
        ("num_attention_heads", model.num_attention_heads, "the attention heads"),
        ("intermediate_size", model.mlp_width, "the MLP's width"),
    ):
        if size % ranks:
            yield (
                "model_parallel_size",
                f"{ranks} ranks cannot share {what} evenly: {size} is no multiple (see {key})",
            )


@RULES.about("model_parallel_size", "num_attention_heads", "num_kv_heads")
def _key_value_heads_are_shared_evenly(args: NeoXArgs) -> Iterator[Finding]:
    heads, ranks = args.model.kv_heads, args.parallelism.model_parallel_size
    grouped = heads != args.model.num_attention_heads
    if grouped and heads % ranks and ranks % heads:
        yield (
            "model_parallel_size",
            f"{ranks} ranks cannot share num_kv_heads {heads} evenly: one must be a multiple of the "
            "other (with fewer heads than ranks, neighbours hold the same one)",
        )


@RULES.about(
    "context_parallel_size",
    "model_parallel_size",
    "hidden_size",
    "num_attention_heads",
    "num_kv_heads",
)
def _context_parallel_ranks_share_heads(args: NeoXArgs) -> Iterator[Finding]:
    context, ranks = args.parallelism.context_parallel_size, args.parallelism.model_parallel_size
    heads, kv_heads = args.model.num_attention_heads, args.model.kv_heads
    if heads % ranks:
        return  # _tensor_parallel_ranks_share_evenly says so
    on_rank, shared = heads // ranks, max(1, kv_heads // ranks)
    if on_rank % context:
        yield (
            "context_parallel_size",
            f"{context} ranks cannot share {on_rank} attention heads evenly (num_attention_heads {heads} / "
            f"model_parallel_size {ranks}), of which each attends with some: use a divisor of {on_rank}",
        )
    elif shared % context and context % shared:
        yield (
            "context_parallel_size",
            f"{context} ranks cannot share {shared} key/value heads evenly (num_kv_heads {kv_heads} / "
            f"model_parallel_size {ranks}): one must be a multiple of the other",
        )


@RULES.about("context_parallel_size", "pipe_parallel_size")
def _context_parallelism_is_plain(args: NeoXArgs) -> Iterator[Finding]:
    context, pipe = args.parallelism.context_parallel_size, args.parallelism.pipe_parallel_size
    if context > 1 and pipe > 0:
        yield (
            "context_parallel_size",
            f"{context} ranks cannot share sequences in a pipeline yet (pipe_parallel_size is {pipe}): use "
            "pipe_parallel_size: 0, and model_parallel_size or ZeRO for weights that one device does not "
            "hold",
        )


@RULES.about("context_parallel_size", "sequence_parallel", "model_parallel_size", "seq_length")
def _tokens_are_shared_evenly(args: NeoXArgs) -> Iterator[Finding]:
    context, ranks = args.parallelism.context_parallel_size, args.parallelism.model_parallel_size
    length, sequence = args.model.seq_length, args.parallelism.sequence_parallel
    if context > 1 and length % (parts := context * (ranks if sequence else 1)):
        share = f"{parts} ranks (with sequence_parallel, times model_parallel_size {ranks})"
        yield (
            "context_parallel_size",
            f"{share if sequence else f'{context} ranks'} cannot share seq_length {length} evenly: it must "
            f"be a multiple of {parts}",
        )
    elif sequence and length % ranks:
        yield (
            "sequence_parallel",
            f"{ranks} ranks (model_parallel_size) cannot share seq_length {length} evenly: it must be a "
            "multiple",
        )
