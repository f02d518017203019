"""The facts of a run as far as a configuration gives them: for its start, and for ``--check``."""

from __future__ import annotations

from typing import Any

from megatron.monitor.arithmetic import flops_per_token
from megatron.monitor.console import BatchFacts, ModelFacts
from megatron.monitor.estimates import (
    DEFAULT_BUCKET_SIZE,
    DEFAULT_PREFETCH,
    DEFAULT_REUSE_DISTANCE,
    Activations,
    MemoryEstimate,
    States,
    estimate_memory,
)
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.sections import ModelArgs


def model_facts(
    model: ModelArgs,
    *,
    parameters: int,
    embedding_parameters: int,
    vocab_size: int,
    padded_vocab_size: int,
) -> ModelFacts:
    """What the model is, with its sizes."""
    return ModelFacts(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_attention_heads,
        num_kv_heads=model.kv_heads,
        mlp_width=model.mlp_width,
        seq_length=model.seq_length,
        norm=model.norm,
        positions=model.pos_emb,
        activation=model.activation,
        parameters=parameters,
        embedding_parameters=embedding_parameters,
        vocab_size=vocab_size,
        padded_vocab_size=padded_vocab_size,
        asked_mlp_width=model.asked_mlp_width,
        mlp_multiple_of=model.mlp_multiple_of,
        gated=model.is_gated,
    )


def batch_facts(batch: BatchSizes) -> BatchFacts:
    """The batch equation."""
    return BatchFacts(
        global_batch_size=batch.global_batch_size,
        micro_batch_size=batch.micro_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        data_parallel_size=batch.data_parallel_size,
    )


def memory_of(
    args: NeoXArgs,
    batch: BatchSizes,
    *,
    parameters: int,
    padded_vocab_size: int,
    checkpoint_activations: bool | None = None,
    num_layers: int | None = None,
    in_flight: int = 1,
) -> MemoryEstimate:
    """What a rank holds in the middle of a step.

    Args:
        args: the configuration.
        batch: samples per step.
        parameters: those on the rank.
        padded_vocab_size: rows of the embedding on the rank.
        checkpoint_activations: in place of the configuration's, to compare.
        num_layers: transformer layers on the rank; None: all.
        in_flight: micro-batches whose activations it keeps at a time.
    """
    if checkpoint_activations is None:
        checkpoint_activations = args.training.checkpoint_activations
    activations = Activations(
        micro_batch_size=batch.micro_batch_size,
        num_layers=args.model.num_layers if num_layers is None else num_layers,
        vocab_size=padded_vocab_size,
        in_flight=in_flight,
        recomputed=args.training.checkpoint_num_layers if checkpoint_activations else None,
        input_shards=_ranks(args) if args.recomputation.partition_activations else 1,
        inputs_on_host=args.recomputation.checkpoint_in_cpu,
        **_widths(args),
    )
    states = States(
        parameters=parameters,
        half_precision=args.model.precision != "fp32",
        zero_stage=args.optim.zero_stage,
        data_parallel_size=batch.data_parallel_size * args.parallelism.context_parallel_size,
        optimizer_states=_optimizer_states(args),
        bucket_size=args.optim.zero_reduce_bucket_size or DEFAULT_BUCKET_SIZE,
        live_parameters=_live_parameters(args, parameters, padded_vocab_size),
        offload_optimizer="optimizer" in args.optim.offloaded,
        offload_weights="weights" in args.optim.offloaded,
    )
    return estimate_memory(states, activations)


def _ranks(args: NeoXArgs) -> int:
    return args.parallelism.model_parallel_size


def _widths(args: NeoXArgs) -> dict[str, Any]:
    """What a rank holds of a token in a layer."""
    model, ranks, context = args.model, _ranks(args), args.parallelism.context_parallel_size
    return {
        "seq_length": model.seq_length // context,
        "hidden_size": model.hidden_size,
        "queries": model.attention_width // ranks,
        # With fewer key/value heads than ranks each holds one; along the context axis of all tokens.
        "kv_size": max(context, model.kv_heads // ranks) * model.head_width,
        "mlp_width": model.mlp_width // ranks,
        "gated": model.is_gated,
        "sequence_shards": ranks if args.parallelism.sequence_parallel else 1,
    }


def _live_parameters(args: NeoXArgs, parameters: int, padded_vocab_size: int) -> int:
    """The most parameters that are whole at a time under ZeRO stage 3, at the end of the forward pass.

    DeepSpeed keeps what is needed again within ``stage3_max_reuse_distance`` parameters: the way there
    and back through the last layers. In front of it lies what is fetched ahead, and at least a layer.
    """
    zero, model = args.optim.zero_optimization or {}, args.model
    table = padded_vocab_size * model.hidden_size
    tables = table * (2 if model.no_weight_tying else 1)
    layer = max(table, max(0, parameters - tables) // model.num_layers)
    ahead = min(
        zero.get("stage3_prefetch_bucket_size", DEFAULT_PREFETCH),
        zero.get("stage3_max_live_parameters", DEFAULT_REUSE_DISTANCE),
    )
    kept = zero.get("stage3_max_reuse_distance", DEFAULT_REUSE_DISTANCE) // 2
    return int(min(parameters, kept + layer + ahead))


def _optimizer_states(args: NeoXArgs) -> int:
    """fp32 numbers that the optimizer keeps for each parameter."""
    if args.optim.name == "sgd":
        return 1 if args.optim.params.get("momentum") else 0
    return 2


def flops_a_token(model: ModelArgs, *, parameters: int, embedding_parameters: int) -> float:
    """Forward and backward of one token; a tied embedding is multiplied once, as the head.

    Args:
        model: the shape.
        parameters: all.
        embedding_parameters: those of the tables that are looked up, the tied one included.
    """
    tied = 0 if model.no_weight_tying else embedding_parameters - _position_parameters(model)
    return flops_per_token(
        matmul_parameters=parameters - embedding_parameters + tied,
        num_layers=model.num_layers,
        attention_width=model.attention_width,
        seq_length=model.seq_length,
    )


def _position_parameters(model: ModelArgs) -> int:
    return model.hidden_size * model.learned_positions
