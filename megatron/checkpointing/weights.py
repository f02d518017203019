"""Weights alone: for a fine-tuning, an evaluation, a sample, or from another trainer's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from megatron.checkpointing.layer_files import layers_of
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.same_tensors import require_same_tensors
from megatron.checkpointing.tensor_files import read_shard, weight_shards
from megatron.checkpointing.together import together
from megatron.checkpointing.universal import VALUE
from megatron.checkpointing.universal_files import open_store
from megatron.checkpointing.universal_pieces import Part, PartReader, require_same_model
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.partitioned import gathered, is_partitioned, whole_shape
from megatron.runtime.stock_deepspeed import Engine
from megatron.runtime.world import World

T = TypeVar("T")
_Source = Callable[[str], Tensor]


def load_weights(
    module: nn.Module,
    info: CheckpointInfo,
    *,
    model_rank: int = 0,
    model_parallel_size: int = 1,
    model: ModelArgs | None = None,
    vocab_size: int | None = None,
    engine: Engine | None = None,
    world: World | None = None,
    without: Collection[str] = (),
) -> None:
    """Copy the checkpoint's weights into ``module``, whatever precision either has.

    All names and shapes are compared before the first weight changes. Safe on any rank alone, unless
    the ranks hold parts of the module's parameters: then all call, and it takes the memory of one
    layer.

    Args:
        module: the model, on any device; values are cast to its parameters' dtypes.
        info: from :func:`find_checkpoint`.
        model_rank: this rank's place among those that share each weight.
        model_parallel_size: how many share each weight.
        model: the model's section of the configuration. With it, weights that are split among another
            number of ranks, or stored whole, or GPT-NeoX's, are fitted.
        vocab_size: ids of the tokenizer, for a checkpoint that does not say how many it was made for.
        engine: DeepSpeed's engine where it exists already: it keeps an fp32 copy of the weights and
            would bring the old ones back at its first step.
        world: given, all ranks call this and raise the same error.
        without: parameters that stay as they are, and that the checkpoint does not have.

    Raises:
        CheckpointError: the files cannot be read or hold another model.
    """
    layers = [
        {name: tensor for name, tensor in tensors.items() if name not in without}
        for tensors in layers_of(module).values()
    ]
    shapes = _shapes(layers)
    weight = _alike(
        world,
        lambda: _open(module, shapes, info, model, model_rank, model_parallel_size, vocab_size),
    )
    if any(is_partitioned(parameter) for parameter in module.parameters()):
        for tensors in layers:
            # Before the gathering: a rank that cannot read would leave the others waiting at its end.
            found = _alike(world, partial(_read, weight, tensors))
            parameters = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
            with gathered(parameters, changes=True):
                _fill(tensors, found.__getitem__)
    else:
        # At once: stages of a pipeline have different layers.
        _alike(world, partial(_fill_all, layers, weight))
    if engine is not None:
        refresh_master_weights(engine)


def _alike(world: World | None, action: Callable[[], T]) -> T:
    """What ``action`` returns here; with a world, an error on any rank is raised on all."""
    if world is None:
        return action()
    done: list[T] = []
    together(world, lambda: done.append(action()))
    return done[0]


def _fill_all(layers: Iterable[Mapping[str, Tensor]], weight: _Source) -> None:
    for tensors in layers:
        _fill(tensors, weight)


def _fill(tensors: Mapping[str, Tensor], weight: _Source) -> None:
    with torch.no_grad():
        for name, target in tensors.items():
            target.copy_(weight(name))


def _read(weight: _Source, names: Iterable[str]) -> dict[str, Tensor]:
    return {name: weight(name) for name in names}


def _open(
    module: nn.Module,
    expected: Mapping[str, torch.Size],
    info: CheckpointInfo,
    model: ModelArgs | None,
    rank: int,
    size: int,
    vocab_size: int | None,
) -> _Source:
    """What gives the ``expected`` weights by name: they are there, and of the right shapes."""
    manifest = info.manifest
    is_ours = manifest is not None and manifest.whole is None
    if model is None or (is_ours and len(weight_shards(info.path)) == size):
        weights = read_weights(info, model_rank=rank, model_parallel_size=size)
        _compare(info, weights, module, expected)
        return weights.__getitem__
    store = open_store(info, with_optimizer=False, model=model, vocab_size=vocab_size)
    shapes = {name: tuple(shape) for name, shape in expected.items()}
    require_same_model(info, store, model, module, shapes, size)
    reader = PartReader(store, model)
    return lambda name: reader.read(VALUE, Part(name, shapes[name], rank, size))


def check_weights_fit(
    module: nn.Module, info: CheckpointInfo, model_parallel_size: int = 1
) -> None:
    """Compare names and shapes only, with those of the first model-parallel rank: all have the same.

    Raises:
        CheckpointError: the files cannot be read or hold another model.
    """
    weights = read_weights(info, model_parallel_size=model_parallel_size)
    _compare(info, weights, module, _shapes(layers_of(module).values()))


def refresh_master_weights(engine: Engine) -> None:
    """Make the optimizer's fp32 copy of the weights equal to the module's weights."""
    optimizer = engine.optimizer
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return  # it steps on the module's own weights
    optimizer.refresh_fp32_params()


def read_weights(
    info: CheckpointInfo, *, model_rank: int = 0, model_parallel_size: int = 1
) -> dict[str, Tensor]:
    """The tensors of one model-parallel rank, by their names in the plain form, on the CPU.

    They are views of the mapped files where the format allows: nothing is read before it is used.

    Raises:
        CheckpointError: the files cannot be read, or are split among another number of ranks.
    """
    shards = weight_shards(info.path)
    if len(shards) != model_parallel_size:
        raise CheckpointError(
            f"{info.path}\n  found: weights split among {len(shards)} model-parallel ranks\n"
            f"  expected: model_parallel_size {model_parallel_size}\n"
            f"  to do: start with model_parallel_size: {len(shards)}, as the run that wrote it"
        )
    return read_shard(info.path, model_rank)


def _shapes(layers: Iterable[Mapping[str, Tensor]]) -> dict[str, torch.Size]:
    return {name: whole_shape(tensor) for tensors in layers for name, tensor in tensors.items()}


def _compare(
    info: CheckpointInfo,
    weights: Mapping[str, Tensor],
    module: nn.Module,
    expected: Mapping[str, torch.Size],
) -> None:
    require_same_tensors(
        info.path,
        {name: tuple(tensor.shape) for name, tensor in weights.items()},
        {name: tuple(shape) for name, shape in expected.items()},
        module,
        the_same=lambda _, there, here: there == here,
    )
