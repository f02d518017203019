"""Model-parallel units: the layout of ranks, and layers and losses that are split over it."""

from megatron.mpu.cross_entropy import vocab_parallel_cross_entropy, vocab_parallel_log_probs
from megatron.mpu.groups import ParallelGroups
from megatron.mpu.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

__all__ = [
    "ColumnParallelLinear",
    "ParallelGroups",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_log_probs",
]
