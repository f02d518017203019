"""The weights of a model of which each data-parallel rank holds a part (ZeRO stage 3), whole in files.

DeepSpeed's own files hold each rank's part in a form that only as many ranks can read. So the weights
are written once more, a layer at a time, into ``layer_<LL>-model_<MM>-model_states.pt``: the files that
every layout, an evaluation and a fine-tuning read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from megatron.runtime.partitioned import gathered, is_first_holder
from megatron.runtime.stock_deepspeed import Engine


def layers_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The tensors of ``module`` by layer, such as ``sequential.2``, then by full name."""
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        layers.setdefault(".".join(name.split(".")[:2]), {})[name] = tensor
    return layers


def holds_parts(engine: Engine) -> bool:
    """Whether a rank of ``engine`` holds only a part of its model's parameters."""
    return int(engine.zero_optimization_stage()) == 3


def write_layers(engine: Engine, save: Callable[[Mapping[str, Tensor], str], None]) -> None:
    """Gather one layer after the other and ``save(tensors, file name)`` it. All ranks call this.

    The first data-parallel rank writes; with node-local storage, the first of each node.
    """
    model_rank = engine.checkpoint_mp_rank
    for layer, tensors in layers_of(engine.module).items():
        prefix, _, number = layer.partition(".")
        assert prefix == "sequential", f"{layer} is no layer of a list"
        parameters = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
        with gathered(parameters):
            if not _writes(engine, parameters):
                continue
            # Copies: a gathered parameter is a view of a larger buffer, which would be stored whole.
            whole = {
                name.removeprefix(f"{layer}."): tensor.detach().to("cpu", copy=True)
                for name, tensor in tensors.items()
            }
            save(whole, f"layer_{int(number):02d}-model_{model_rank:02d}-model_states.pt")


def _writes(engine: Engine, parameters: list[nn.Parameter]) -> bool:
    if engine.use_node_local_storage():
        return writes_for_its_node(engine)
    return is_first_holder(parameters)


def writes_for_its_node(engine: Engine) -> bool:
    """Whether this rank writes weights on a disk that only its node has.

    All model-parallel ranks' weights have to be there. Those ranks are neighbours.
    """
    return int(engine.local_rank) < int(engine.mp_world_size)
