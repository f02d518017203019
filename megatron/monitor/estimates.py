"""How much memory a rank needs, before anything runs.

Arithmetic on the model's shape alone. Letters: ``L`` layers, ``h`` hidden size, ``s`` sequence
length, ``P`` parameters of this rank, ``V`` rows of the vocabulary on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

# DeepSpeed's default ``reduce_bucket_size``.
DEFAULT_BUCKET_SIZE = 500_000_000
# Its defaults for stage 3: ``stage3_max_reuse_distance``, which ``stage3_max_live_parameters`` equals, and
# ``stage3_prefetch_bucket_size``.
DEFAULT_REUSE_DISTANCE = 1_000_000_000
DEFAULT_PREFETCH = 50_000_000
_FP32_BYTES = 4
_HALF_BYTES = 2


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one rank's device. What the process itself and its libraries take is not in it.

    Attributes:
        weights: the parameters that compute; under ZeRO stage 3 this rank's share and those that are
            gathered at a time.
        gradients: theirs.
        optimizer: fp32 copies and states.
        buffers: copies of gradients on their way to other ranks and to the optimizer.
        activations: what the forward pass keeps, and the most that the backward pass adds.
        host: what is offloaded into the host's memory, or kept there; it is in none of the others.
    """

    weights: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    host: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.buffers + self.activations


def estimate_memory(
    *,
    parameters: int,
    half_precision: bool,
    zero_stage: int,
    data_parallel_size: int,
    micro_batch_size: int,
    seq_length: int,
    num_layers: int,
    hidden_size: int,
    kv_size: int,
    mlp_width: int,
    gated: bool,
    vocab_size: int,
    attention_width: int | None = None,
    sequence_shards: int = 1,
    in_flight: int = 1,
    checkpoint_activations: bool = False,
    checkpoint_num_layers: int = 1,
    input_shards: int = 1,
    inputs_on_host: bool = False,
    optimizer_states: int = 2,
    bucket_size: int = DEFAULT_BUCKET_SIZE,
    live_parameters: int | None = None,
    offload_optimizer: bool = False,
    offload_weights: bool = False,
) -> MemoryEstimate:
    """What one rank of a dense decoder holds in the middle of a step.

    Args:
        parameters: ``P``, those on this rank.
        half_precision: weights and activations have two bytes, and the optimizer an fp32 copy.
        zero_stage: 0: whole optimizer on each rank; 1: its share; 2: gradients too; 3: weights too.
        data_parallel_size: ranks that share under ZeRO.
        seq_length: tokens of a sequence that the rank holds.
        kv_size: width of all key heads together on this rank.
        mlp_width: inner width of the MLP on this rank, half of ``linear1`` when ``gated``.
        vocab_size: ``V``.
        attention_width: width of all queries together on this rank; None: ``hidden_size``.
        sequence_shards: ranks that share the tokens between the parallel layers.
        in_flight: micro-batches whose activations are kept at a time, in a pipeline.
        checkpoint_num_layers: layers that are recomputed at a time.
        input_shards: ranks that share the inputs that are kept for it.
        inputs_on_host: they lie in the host's memory.
        optimizer_states: fp32 numbers that the optimizer keeps for each parameter: 2 for Adam.
        bucket_size: numbers that are reduced at once (DeepSpeed's ``reduce_bucket_size``).
        live_parameters: the most that are whole at a time under stage 3; None: all.
        offload_optimizer: its copies and states, and the gradients that it takes, lie in the host's
            memory.
        offload_weights: so do the shares of the weights under stage 3.
    """
    size = _HALF_BYTES if half_precision else _FP32_BYTES
    share = data_parallel_size if zero_stage >= 1 else 1
    # ZeRO keeps fp32 copies of its share whatever the precision; stage 0 in fp32 needs none.
    copies = 1 if half_precision or zero_stage >= 1 else 0
    tokens = micro_batch_size * seq_length
    kept, away = _kept_numbers(
        num_layers=num_layers,
        hidden_size=hidden_size,
        queries=hidden_size if attention_width is None else attention_width,
        kv_size=kv_size,
        mlp_width=mlp_width,
        linear1=(2 if gated else 1) * mlp_width,
        sequence_shards=sequence_shards,
        in_flight=in_flight,
        recomputed=checkpoint_num_layers if checkpoint_activations else None,
        input_shards=input_shards,
        inputs_on_host=inputs_on_host,
    )
    # The logits, their fp32 form, and its gradient.
    logits = vocab_size * (size + 2 * _FP32_BYTES)
    shards = data_parallel_size if zero_stage >= 3 else 1
    weights = parameters * size // shards
    gathered = min(parameters, live_parameters or parameters) * size if zero_stage >= 3 else 0
    gradients = parameters * size // (data_parallel_size if zero_stage >= 2 else 1)
    optimizer = parameters * _FP32_BYTES * (copies + optimizer_states) // share
    under_way = _under_way(parameters, size, zero_stage, data_parallel_size, bucket_size)
    # The averaged share of the gradients (ZeRO), and one temporary of that share in the step.
    taken = parameters * _FP32_BYTES // share * (2 if zero_stage >= 1 else 1)
    host = tokens * away * size
    if offload_optimizer:
        host += optimizer + taken
        optimizer = taken = 0
    if offload_weights:
        host += weights
        weights = 0
    return MemoryEstimate(
        weights=weights + gathered,
        gradients=gradients,
        optimizer=optimizer,
        buffers=under_way + taken,
        activations=tokens * (kept * size + logits),
        host=host,
    )


def _kept_numbers(
    *,
    num_layers: int,
    hidden_size: int,
    queries: int,
    kv_size: int,
    mlp_width: int,
    linear1: int,
    sequence_shards: int,
    in_flight: int,
    recomputed: int | None,
    input_shards: int,
    inputs_on_host: bool,
) -> tuple[int, int]:
    """Numbers of a token that the layers keep for the backward pass: on the device, in the host's memory.

    Widths are this rank's, as in :func:`estimate_memory`; ``linear1`` is the first layer's of the MLP.
    ``recomputed`` layers at a time are computed again, of which the input alone is kept; None: all is.
    """
    qkv = queries + 2 * kv_size
    # A token's share of what lies between the parallel layers.
    between = -(-hidden_size // sequence_shards)
    # Kept for the backward pass of one layer, per token: its input and the outputs of two norms;
    # queries, keys and values, and the former two rotated; the attention's output, as it comes and
    # with its heads joined; the MLP before and after its activation. Fused attention keeps no s × s
    # scores.
    per_layer = 3 * between + qkv + (queries + kv_size) + 2 * queries
    per_layer += linear1 + mlp_width
    under_way = linear1 + mlp_width + qkv  # the gradients of one layer
    if recomputed is None:
        return in_flight * num_layers * per_layer + under_way, 0
    # The input of each group of layers, and one group that is recomputed.
    groups = -(-num_layers // recomputed)
    inputs = in_flight * groups * -(-hidden_size // max(sequence_shards, input_shards))
    kept = min(num_layers, recomputed) * per_layer + under_way
    return (kept, inputs) if inputs_on_host else (kept + inputs, 0)


def _under_way(
    parameters: int, size: int, zero_stage: int, data_parallel_size: int, bucket_size: int
) -> int:
    """Bytes of copies of gradients: the bucket that is filled (ZeRO), the flat copy that travels and its
    like in the collective's library."""
    bucket = min(parameters, bucket_size) * size
    return bucket * (int(zero_stage >= 1) + (2 if data_parallel_size > 1 else 0))
