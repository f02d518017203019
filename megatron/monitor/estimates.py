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


@dataclass(frozen=True)
class Activations:
    """What decides what a rank keeps of a step's tokens. Widths are this rank's own.

    Attributes:
        seq_length: tokens of a sequence that the rank holds.
        hidden_size: ``h``, whole.
        queries: width of all query heads together; ``kv_size`` that of all key heads.
        mlp_width: inner width of the MLP, half of ``linear1`` when ``gated``.
        vocab_size: ``V``.
        sequence_shards: ranks that share the tokens between the parallel layers.
        in_flight: micro-batches whose activations are kept at a time, in a pipeline.
        recomputed: layers that are computed again at a time, of which the input alone is kept; None: all
            is kept.
        input_shards: ranks that share these inputs.
        inputs_on_host: they lie in the host's memory.
    """

    micro_batch_size: int
    seq_length: int
    num_layers: int
    hidden_size: int
    queries: int
    kv_size: int
    mlp_width: int
    gated: bool
    vocab_size: int
    sequence_shards: int = 1
    in_flight: int = 1
    recomputed: int | None = None
    input_shards: int = 1
    inputs_on_host: bool = False

    def on_device(self, size: int) -> int:
        """Bytes that the forward pass keeps, and the most that the backward pass adds.

        Args:
            size: bytes of a number.
        """
        linear1 = (2 if self.gated else 1) * self.mlp_width
        qkv = self.queries + 2 * self.kv_size
        # A token's share of what lies between the parallel layers.
        between = -(-self.hidden_size // self.sequence_shards)
        # Kept for the backward pass of one layer, per token: its input and the outputs of two norms;
        # queries, keys and values, and the former two rotated; the attention's output, as it comes and
        # with its heads joined; the MLP before and after its activation. Fused attention keeps no s × s
        # scores.
        per_layer = 3 * between + qkv + (self.queries + self.kv_size) + 2 * self.queries
        per_layer += linear1 + self.mlp_width
        if self.recomputed is None:
            kept = self.in_flight * self.num_layers * per_layer
        else:
            inputs = 0 if self.inputs_on_host else self._inputs
            kept = inputs + min(self.num_layers, self.recomputed) * per_layer
        under_way = linear1 + self.mlp_width + qkv  # the gradients of one layer
        # The logits, their fp32 form, and its gradient.
        logits = self.vocab_size * (size + 2 * _FP32_BYTES)
        return self._tokens * ((kept + under_way) * size + logits)

    def on_host(self, size: int) -> int:
        """Bytes of inputs that wait for recomputation in the host's memory."""
        away = self.inputs_on_host and self.recomputed is not None
        return self._tokens * self._inputs * size if away else 0

    @property
    def _tokens(self) -> int:
        return self.micro_batch_size * self.seq_length

    @property
    def _inputs(self) -> int:
        """Numbers of a token: the input of each group of layers that is recomputed at a time."""
        groups = -(-self.num_layers // (self.recomputed or 1))
        shards = max(self.sequence_shards, self.input_shards)
        return self.in_flight * groups * -(-self.hidden_size // shards)


@dataclass(frozen=True)
class States:
    """What decides what a rank holds for its parameters.

    Attributes:
        parameters: ``P``, those on this rank.
        half_precision: weights and activations have two bytes, and the optimizer an fp32 copy.
        zero_stage: 0: whole optimizer on each rank; 1: its share; 2: gradients too; 3: weights too.
        data_parallel_size: ranks that share under ZeRO.
        optimizer_states: fp32 numbers that the optimizer keeps for each parameter: 2 for Adam.
        bucket_size: numbers that are reduced at once (DeepSpeed's ``reduce_bucket_size``).
        live_parameters: the most that are whole at a time under stage 3; None: all.
        offload_optimizer: its copies and states, and the gradients that it takes, lie in the host's
            memory.
        offload_weights: so do the shares of the weights under stage 3.
    """

    parameters: int
    half_precision: bool
    zero_stage: int
    data_parallel_size: int
    optimizer_states: int = 2
    bucket_size: int = DEFAULT_BUCKET_SIZE
    live_parameters: int | None = None
    offload_optimizer: bool = False
    offload_weights: bool = False

    @property
    def size(self) -> int:
        """Bytes of a number that computes."""
        return _HALF_BYTES if self.half_precision else _FP32_BYTES

    @property
    def under_way(self) -> int:
        """Bytes of copies of gradients: the bucket that is filled (ZeRO), the flat copy that travels and
        its like in the collective's library."""
        bucket = min(self.parameters, self.bucket_size) * self.size
        return bucket * (int(self.zero_stage >= 1) + (2 if self.data_parallel_size > 1 else 0))


def estimate_memory(states: States, activations: Activations) -> MemoryEstimate:
    """What one rank of a dense decoder holds in the middle of a step."""
    parameters, stage, size = states.parameters, states.zero_stage, states.size
    ranks = states.data_parallel_size
    share = ranks if stage >= 1 else 1
    # ZeRO keeps fp32 copies of its share whatever the precision; stage 0 in fp32 needs none.
    copies = 1 if states.half_precision or stage >= 1 else 0
    weights = parameters * size // (ranks if stage >= 3 else 1)
    whole = min(parameters, states.live_parameters or parameters) * size if stage >= 3 else 0
    optimizer = parameters * _FP32_BYTES * (copies + states.optimizer_states) // share
    # The averaged share of the gradients (ZeRO), and one temporary of that share in the step.
    taken = parameters * _FP32_BYTES // share * (2 if stage >= 1 else 1)
    host = activations.on_host(size)
    if states.offload_optimizer:
        host += optimizer + taken
        optimizer = taken = 0
    if states.offload_weights:
        host += weights
        weights = 0
    return MemoryEstimate(
        weights=weights + whole,
        gradients=parameters * size // (ranks if stage >= 2 else 1),
        optimizer=optimizer,
        buffers=states.under_way + taken,
        activations=activations.on_device(size),
        host=host,
    )
