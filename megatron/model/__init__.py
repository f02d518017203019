"""The dense decoder as a list of layers. Start reading at :mod:`megatron.model.gpt2_model`."""

from megatron.model.gpt2_model import GPT2Model
from megatron.model.kv_cache import KVCache
from megatron.model.segments import Segments, positions_within

__all__ = ["GPT2Model", "KVCache", "Segments", "positions_within"]
