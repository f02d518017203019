"""How the ranks are laid out, and how many samples each of them takes per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from megatron.neox_arguments.typed import Ignored, NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class ParallelismArgs:
    """Axes of the parallel layout. What they leave of the world is the data-parallel size."""

    pipe_parallel_size: NonNegativeInt = 0
    """Pipeline stages. 0 is the plain module without a pipeline engine; 1 runs the plain form too,
    and says so. Larger sizes are refused for now."""

    model_parallel_size: PositiveInt = 1
    """Tensor-parallel ranks that share each layer: neighbours, best within one host. It must divide
    `num_attention_heads` and the MLP's width, and of it and `num_kv_heads` one must divide the other."""

    sequence_parallel: bool = False
    """true shares the tokens of norms, dropout and residuals among the tensor-parallel ranks too, which
    would otherwise all hold all of them. `seq_length` must be a multiple of `model_parallel_size`."""

    context_parallel_size: PositiveInt = 1
    """Ranks that share each sequence, for sequences whose activations are too large for one: each holds
    a part of the tokens, and around attention they exchange tokens for heads (Ulysses). It must divide
    `seq_length` (times `model_parallel_size` with `sequence_parallel`) and the heads of each
    tensor-parallel rank; above 1 it needs `pipe_parallel_size: 0`."""

    pipe_partition_method: Annotated[str, Ignored("there is one pipeline stage")] = (
        "type:transformer|mlp"
    )
    """How layers are dealt out to pipeline stages; has a meaning with `pipe_parallel_size` above 1 only."""

    @property
    def ranks_per_replica(self) -> int:
        """Ranks that compute one sample together."""
        return self.weight_parts * self.context_parallel_size

    @property
    def weight_parts(self) -> int:
        """Parts that the model's weights are cut into, of which a rank holds one."""
        return max(1, self.pipe_parallel_size) * self.model_parallel_size


@dataclass(frozen=True)
class BatchArgs:
    """Samples per step. Any two of the three keys give the third:
    train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks.
    """

    train_batch_size: PositiveInt | None = None
    """Samples that one optimizer step takes, over all ranks (the global batch size)."""

    train_micro_batch_size_per_gpu: PositiveInt | None = None
    """Samples that one rank takes in one forward pass. Also known as `batch_size`."""

    gradient_accumulation_steps: PositiveInt | None = None
    """Forward and backward passes per optimizer step. Default: what the other two give, else 1."""
