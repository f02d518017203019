"""The dense decoder as a list of layers. Start reading at :mod:`megatron.model.gpt2_model`."""

from megatron.model.base_shapes import parametrization_of, shapes_of, write_base_shapes
from megatron.model.gpt2_model import GPT2Model
from megatron.model.kv_cache import KVCache
from megatron.model.parametrization import STANDARD, Parametrization
from megatron.model.segments import Segments, positions_within

__all__ = [
    "STANDARD",
    "GPT2Model",
    "KVCache",
    "Parametrization",
    "Segments",
    "parametrization_of",
    "positions_within",
    "shapes_of",
    "write_base_shapes",
]
