"""How the ranks are laid out, and how many samples each of them takes per step."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.neox_arguments.typed import NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class ParallelismArgs:
    """Axes of the parallel layout. What they leave of the world is the data-parallel size."""

    pipe_parallel_size: NonNegativeInt = 0
    """Stages that the layers are dealt out to, each on ranks of its own: micro-batches
    (`gradient_accumulation_steps`) follow each other through them. 0 is the plain module; from 1 on
    DeepSpeed's pipeline engine runs it, with ZeRO stage 0 or 1."""

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

    pipe_partition_method: str = "type:transformer|mlp"
    """How layers are dealt out to pipeline stages: `parameters` shares weights evenly, `uniform` entries
    of the layer list, and `type:` with a regular expression the layers whose class in GPT-NeoX it finds:
    `EmbeddingPipe`, `ParallelTransformerLayerPipe`, `NormPipe`, `ParallelLinearPipe`."""

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
