"""How parameters start: GPT-NeoX's schemes, drawn independently of how the model is spread out.

Each tensor of the whole model is drawn from a generator of its own, seeded by (seed, name), and a
model-parallel rank keeps its part: the values are the same on any number of ranks, pipeline stages or
threads. The draw is made in fp32 on the CPU, a few rows at a time: a rank never holds a whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megatron.model import layout
from megatron.model.parametrization import STANDARD, Parametrization
from megatron.mpu.groups import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.seeds import derive_seed

# The layers that write into the residual stream have a scheme of their own.
_ORTHOGONAL = ("orthogonal", "scaled_orthogonal")
_OUTPUT_LAYERS = ("attention.dense", "mlp.linear2")


def standard_deviation(scheme: str, model: ModelArgs, shape: Sequence[int] = (0, 0)) -> float:
    """Of the distribution, around 0, that a matrix of ``shape`` is drawn from; mostly normal.

    - ``normal``: ``init_method_std``.
    - ``scaled_normal``: ``init_method_std`` / sqrt(2 L) for L layers (GPT-2, Radford et al., 2019).
    - ``small_init``: sqrt(2 / (5 h)) (Nguyen and Salazar, 2019, for a hidden size of h).
    - ``wang_init``: 2 / (L sqrt(h)) (Wang and Komatsuzaki, GPT-J, 2021).
    - ``single_residual_scaled_normal``: ``init_method_std`` / sqrt(L).
    - ``xavier_normal``, and the uniform ``xavier_uniform``: sqrt(2 / (inputs + outputs)) (Glorot and
      Bengio, 2010).
    - ``orthogonal`` and ``scaled_orthogonal``: that of the numbers in a matrix whose shorter side's vectors
      are orthogonal and sqrt(2), or sqrt(2 / L), long.
    """
    layers, hidden = model.num_layers, model.hidden_size
    if scheme == "normal":
        return model.init_method_std
    if scheme == "scaled_normal":
        return model.init_method_std / math.sqrt(2.0 * layers)
    if scheme == "small_init":
        return math.sqrt(2.0 / (5.0 * hidden))
    if scheme == "single_residual_scaled_normal":
        return model.init_method_std / math.sqrt(layers)
    if scheme in ("xavier_normal", "xavier_uniform"):
        return math.sqrt(2.0 / sum(shape))
    if scheme in _ORTHOGONAL:
        return _gain(scheme, layers) / math.sqrt(max(shape))
    assert scheme == "wang_init", scheme
    return 2.0 / (layers * math.sqrt(hidden))


def _gain(scheme: str, layers: int) -> float:
    return math.sqrt(2.0 / (layers if scheme.startswith("scaled") else 1))


def _width_factor(
    parametrization: Parametrization, name: str, scheme: str, model: ModelArgs, shape: Sequence[int]
) -> float:
    """By how much the numbers of a scheme are multiplied, which knows nothing of a base model.

    What a scheme says of widths counts for the base model alone.
    """
    if not parametrization.base:
        return 1.0
    base_model = replace(model, hidden_size=parametrization.base_hidden_size)
    wanted = standard_deviation(scheme, base_model, parametrization.base[name])
    wanted *= parametrization.initial_factor / math.sqrt(parametrization.ratio(name))
    return wanted / standard_deviation(scheme, model, shape)


@torch.no_grad()
def initialize_layer(
    layer: nn.Module,
    index: int,
    model: ModelArgs,
    *,
    seed: int,
    groups: ParallelGroups,
    parametrization: Parametrization = STANDARD,
    prompt_range: float = 0.5,
) -> None:
    """Fill the parameters of layer ``index`` of the layer list: weights drawn, biases 0, norms 1.

    A soft prompt's numbers are drawn evenly between plus and minus ``prompt_range``.
    """
    rank, size = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    for name, parameter in layer.named_parameters():
        whole_name = layout.whole_name(name)
        module, _, kind = whole_name.rpartition(".")
        if kind == "bias":
            parameter.zero_()
        elif name == layout.SOFT_PROMPT:
            generator = torch.Generator().manual_seed(derive_seed(seed, "init", index, name))
            parameter.uniform_(-prompt_range, prompt_range, generator=generator)
        elif layout.is_norm(name):
            # What multiplies is 1: the offset is added to the weights.
            parameter.fill_(1.0 - model.norm_weight_offset)
        else:
            output = module in _OUTPUT_LAYERS
            scheme = model.output_layer_init_method if output else model.init_method
            if module == "attention.rpe":
                scheme = "xavier_normal"  # GPT-NeoX's, whatever the other weights have
            generator = torch.Generator().manual_seed(derive_seed(seed, "init", index, whole_name))
            shape = _whole_shape(parameter, model, name, size)
            split = layout.partition(model, name, shape)
            runs = split.indices(rank, size) if split is not None else [(0, shape[0])]
            place = _Place(split.dim if split is not None else 0, runs)
            full_name = f"sequential.{index}.{whole_name}"
            factor = _width_factor(parametrization, full_name, scheme, model, shape)
            if scheme in _ORTHOGONAL:
                gain = _gain(scheme, model.num_layers) * factor
                parameter.copy_(_orthogonal(shape, gain, generator, place))
                continue
            deviation = standard_deviation(scheme, model, shape) * factor
            uniform = scheme == "xavier_uniform"
            _draw_part(parameter, shape, place, deviation, generator, uniform=uniform)


def _whole_shape(parameter: Tensor, model: ModelArgs, name: str, size: int) -> tuple[int, int]:
    shape = list(parameter.shape)
    split = layout.partition(model, name, shape)
    if split is not None and split.dim == 1:
        shape[1] *= size
    elif split is not None:
        module = name.rpartition(".")[0]
        is_fused = module == "attention.query_key_value"
        shape[0] = sum(layout.query_key_value_rows(model)) if is_fused else shape[0] * size
    rows, columns = shape
    return rows, columns


class _Place(NamedTuple):
    """A part of a matrix: (start, length) of runs of rows (``dim`` 0) or columns (1), one by one."""

    dim: int
    runs: list[tuple[int, int]]


def _orthogonal(
    shape: tuple[int, int], gain: float, generator: torch.Generator, place: _Place
) -> Tensor:
    """A part of a matrix whose rows, or columns if these are fewer, are orthogonal and ``gain`` long.

    It takes the whole matrix to make a part of it (Saxe et al., 2013).
    """
    whole = nn.init.orthogonal_(torch.empty(shape), gain, generator=generator)
    return torch.cat([whole.narrow(place.dim, *run) for run in place.runs], dim=place.dim)


def _draw_part(
    out: Tensor,
    shape: tuple[int, int],
    place: _Place,
    deviation: float,
    generator: torch.Generator,
    block_elements: int = 1 << 22,
    uniform: bool = False,
) -> None:
    """Fill ``out`` with its part of the matrix of ``shape`` that ``generator`` draws.

    Rows are drawn in blocks, whose numbers are those of one draw: torch draws normal numbers in
    groups of 16, so that a block must be a multiple of 16 numbers and the last not fewer.
    """
    rows, columns = shape
    step = max(16, block_elements // columns // 16 * 16)
    start = 0
    while start < rows:
        stop = rows if rows - start - step < 16 else start + step
        block = torch.empty(stop - start, columns)
        if uniform:
            limit = math.sqrt(3.0) * deviation
            block.uniform_(-limit, limit, generator=generator)
        else:
            block.normal_(0.0, deviation, generator=generator)
        filled = 0
        for first, length in place.runs:
            if place.dim == 1:
                out[start:stop, filled : filled + length] = block[:, first : first + length]
            else:
                low, high = max(first, start), min(first + length, stop)
                if low < high:
                    there = filled + low - first
                    out[there : there + high - low] = block[low - start : high - start]
            filled += length
        start = stop
