"""Files of weights as the ranks of a run would have written them, without a run.

Names, shapes and files are GPT-NeoX's: ``mp_rank_<MM>_model_states.pt`` with all of a rank's tensors under
``module`` or, for a pipeline, a file for each layer and rank, and ``mp_rank`` files that hold counters only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.conversion.parameters import Parameter
from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.durable import new_file

Read = Callable[[Parameter], Tensor]


def write_rank_files(
    folder: Path,
    model: ModelArgs,
    parameters: Sequence[Parameter],
    read: Read,
    *,
    model_parallel_size: int,
    pipe_parallel_size: int,
) -> dict[str, int]:
    """Write the weights of all ranks.

    In a pipeline's form one layer is in memory at a time, else what one rank holds.

    Args:
        folder: exists.
        model: the model's section of the configuration.
        parameters: of the whole model, in the order of the layers, with all rows of the vocabulary.
        read: gives them in the dtype of the files.
        model_parallel_size: ranks that share each weight.
        pipe_parallel_size: stages; 0 for the plain form.

    Returns:
        Name → bytes of the files.
    """
    size = model_parallel_size
    counters = {**_COUNTERS, "mp_world_size": size * max(1, pipe_parallel_size)}
    sizes: dict[str, int] = {}
    if pipe_parallel_size == 0:
        for rank in range(size):
            # Made in the call: one rank's tensors are gone before the next rank's are made.
            file = f"mp_rank_{rank:02d}_model_states.pt"
            sizes[file] = _save(
                folder / file, {"module": _module(model, parameters, read, rank, size), **counters}
            )
        return sizes
    for layer, members in groupby(parameters, key=lambda parameter: parameter.layer):
        whole = [(parameter, read(parameter)) for parameter in members]
        for rank in range(size):
            tensors = {
                name: part
                for parameter, tensor in whole
                for name, part in _parts(model, parameter, tensor, rank, size)
            }
            file = f"layer_{layer:02d}-model_{rank:02d}-model_states.pt"
            sizes[file] = _save(folder / file, tensors)
    for number in range(size * pipe_parallel_size):
        file = f"mp_rank_{number:02d}_model_states.pt"
        sizes[file] = _save(folder / file, {"module": None, **counters})
    return sizes


def _module(
    model: ModelArgs, parameters: Sequence[Parameter], read: Read, rank: int, size: int
) -> dict[str, Tensor]:
    """What a rank holds of all parameters, by names in the plain form."""
    return {
        f"sequential.{parameter.layer}.{name}": tensor
        for parameter in parameters
        for name, tensor in _parts(model, parameter, read(parameter), rank, size)
    }


# What DeepSpeed looks for beside the weights.
_COUNTERS: dict[str, Any] = {
    "optimizer": None,
    "lr_scheduler": None,
    "sparse_tensor_module_names": [],
    "buffer_names": [],
    "param_shapes": None,
    "skipped_steps": 0,
    "global_steps": 0,
    "global_samples": 0,
    "dp_world_size": 1,
    "iteration": 0,
}


def _parts(
    model: ModelArgs, parameter: Parameter, whole: Tensor, rank: int, size: int
) -> Iterator[tuple[str, Tensor]]:
    """What a rank holds of a parameter: names inside the layer, and tensors."""
    for name in layout.names_of_rank(model, parameter.inner, size):
        split = layout.partition(model, name, parameter.shape)
        yield name, layout.take_shard(whole, split, rank, size)


def _save(path: Path, content: Mapping[str, Any]) -> int:
    with new_file(path) as file:
        torch.save(dict(content), file)
        file.flush()
        return file.tell()
