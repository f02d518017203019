"""How parameters start: GPT-NeoX's schemes, drawn independently of how the model is spread out.

Each parameter is drawn from a generator of its own, seeded by (seed, name), as the tensor of the
whole layer, of which a model-parallel rank keeps its part: the values are the same on any number of
ranks, pipeline stages or threads. The draw is made in fp32 on the CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from megatron.model import layout
from megatron.mpu.groups import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.seeds import derive_seed

# The layers that write into the residual stream have a scheme of their own.
_OUTPUT_LAYERS = ("attention.dense", "mlp.linear2")


def standard_deviation(scheme: str, model: ModelArgs) -> float:
    """Of the normal distribution, around 0, that weights are drawn from.

    - ``normal``: ``init_method_std``.
    - ``scaled_normal``: ``init_method_std`` / sqrt(2 L) for L layers (GPT-2, Radford et al., 2019).
    - ``small_init``: sqrt(2 / (5 h)) (Nguyen and Salazar, 2019, for a hidden size of h).
    - ``wang_init``: 2 / (L sqrt(h)) (Wang and Komatsuzaki, GPT-J, 2021).
    """
    layers, hidden = model.num_layers, model.hidden_size
    if scheme == "normal":
        return model.init_method_std
    if scheme == "scaled_normal":
        return model.init_method_std / math.sqrt(2.0 * layers)
    if scheme == "small_init":
        return math.sqrt(2.0 / (5.0 * hidden))
    assert scheme == "wang_init", scheme
    return 2.0 / (layers * math.sqrt(hidden))


@torch.no_grad()
def initialize_layer(
    layer: nn.Module, index: int, model: ModelArgs, *, seed: int, groups: ParallelGroups
) -> None:
    """Fill the parameters of layer ``index`` of the layer list: weights drawn, biases 0, norms 1."""
    rank, size = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    for name, parameter in layer.named_parameters():
        module, _, kind = name.rpartition(".")
        if kind == "bias":
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            output = module in _OUTPUT_LAYERS
            scheme = model.output_layer_init_method if output else model.init_method
            generator = torch.Generator().manual_seed(derive_seed(seed, "init", index, name))
            shape = _whole_shape(parameter, model, name, size)
            whole = torch.empty(shape).normal_(
                0.0, standard_deviation(scheme, model), generator=generator
            )
            parameter.copy_(
                layout.take_shard(whole, layout.partition(model, name, shape), rank, size)
            )


def _whole_shape(parameter: Tensor, model: ModelArgs, name: str, size: int) -> tuple[int, ...]:
    shape = list(parameter.shape)
    split = layout.partition(model, name, shape)
    if split is not None:
        shape[split.dim] *= size
    return tuple(shape)
