"""Weights alone: for a fine-tuning, an evaluation, a sample, or from another trainer's checkpoint.

Files are read with ``weights_only=True``: a pickle from elsewhere could run any code. Beside tensors
and plain containers only the NumPy globals of :func:`_harmless_globals` pass, with which GPT-NeoX
stores generator states.

Two forms exist: ``mp_rank_<MM>_model_states.pt`` holds a plain module's tensors under ``module``;
a pipeline leaves ``module`` empty and has a file ``layer_<LL>-model_<MM>-model_states.pt`` for each
layer, whose tensors bear names inside the layer: they are ``sequential.<L>.<name>`` of the plain
form.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from megatron.checkpointing.find import CheckpointInfo
from megatron.checkpointing.layer_files import layers_of
from megatron.checkpointing.together import together
from megatron.errors import CheckpointError
from megatron.runtime.partitioned import gathered, whole_shape
from megatron.runtime.stock_deepspeed import Engine
from megatron.runtime.world import World

_MODEL_FILE = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")

# Old files carry this buffer; it follows from the configuration.
_DERIVED = re.compile(r".*\brotary_emb\.inv_freq")

# What a file that is not what it should be makes torch.load raise.
BROKEN_FILE = (
    OSError,
    RuntimeError,
    EOFError,
    KeyError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def load_weights(
    module: nn.Module,
    info: CheckpointInfo,
    *,
    model_rank: int = 0,
    model_parallel_size: int = 1,
    engine: Engine | None = None,
    world: World | None = None,
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
        engine: DeepSpeed's engine where it exists already: it keeps an fp32 copy of the weights and
            would bring the old ones back at its first step.
        world: given, all ranks call this and raise the same error.

    Raises:
        CheckpointError: the files cannot be read or hold another model.
    """
    found: dict[str, Tensor] = {}

    def look() -> None:
        found.update(
            read_weights(info, model_rank=model_rank, model_parallel_size=model_parallel_size)
        )
        _compare(info, found, module)

    if world is None:
        look()
    else:
        together(world, look)
    for tensors in layers_of(module).values():
        parameters = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
        with torch.no_grad(), gathered(parameters, changes=True):
            for name, target in tensors.items():
                target.copy_(found[name])
    if engine is not None:
        refresh_master_weights(engine)


def check_weights_fit(
    module: nn.Module, info: CheckpointInfo, model_parallel_size: int = 1
) -> None:
    """Compare names and shapes only, with those of the first model-parallel rank: all have the same.

    Raises:
        CheckpointError: the files cannot be read or hold another model.
    """
    weights = read_weights(info, model_parallel_size=model_parallel_size)
    _compare(info, weights, module)


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
    names = sorted(entry.name for entry in info.path.iterdir())
    layer_files = [m for m in map(_LAYER_FILE.fullmatch, names) if m]
    model_files = [m for m in map(_MODEL_FILE.fullmatch, names) if m]
    shards = {int(m[2]) for m in layer_files} or {int(m[1]) for m in model_files}
    if not shards:
        raise CheckpointError(
            f"{info.path} holds no weights\n  expected: mp_rank_00_model_states.pt or "
            "layer_00-model_00-model_states.pt and so on"
        )
    if len(shards) != model_parallel_size:
        raise CheckpointError(
            f"{info.path}\n  found: weights split among {len(shards)} model-parallel ranks\n"
            f"  expected: model_parallel_size {model_parallel_size}\n"
            f"  to do: start with model_parallel_size: {len(shards)}, as the run that wrote it"
        )
    if not layer_files:
        path = info.path / f"mp_rank_{model_rank:02d}_model_states.pt"
        return _tensors(path, read_safely(path).get("module"))
    weights = {}
    for match in layer_files:
        if int(match[2]) == model_rank:
            path = info.path / match[0]
            for name, tensor in _tensors(path, read_safely(path)).items():
                weights[f"sequential.{int(match[1])}.{name}"] = tensor
    return weights


def read_safely(path: Path) -> dict[str, Any]:
    """A file of tensors, mapped on the CPU, of which nothing can run code.

    Raises:
        CheckpointError: it is missing, damaged, or holds other things than tensors.
    """
    try:
        with torch.serialization.safe_globals(_harmless_globals()):
            try:
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                # Files from before torch 1.6 cannot be mapped.
                content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except BROKEN_FILE as error:
        blocked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if blocked:
            raise CheckpointError(
                f"{path}\n  found: a Python object of the kind {blocked[1]}\n"
                "  expected: tensors, numbers and plain containers; others are not loaded, because "
                "they could run code"
            ) from error
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"{path} is damaged: {lines[0]}\n  to do: restore it, or use another checkpoint"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; expected a dictionary")
    return content


def _tensors(path: Path, content: object) -> dict[str, Tensor]:
    tensors = (
        {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        if isinstance(content, Mapping)
        else {}
    )
    if not tensors:
        raise CheckpointError(f"{path} holds no weights where they are expected, under `module`")
    return {name: tensor for name, tensor in tensors.items() if not _DERIVED.fullmatch(name)}


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {
        name: whole_shape(tensor)
        for tensors in layers_of(module).values()
        for name, tensor in tensors.items()
    }


def _compare(info: CheckpointInfo, weights: Mapping[str, Tensor], module: nn.Module) -> None:
    expected = _shapes(module)
    # A stage of a pipeline knows which names belong to the others.
    is_elsewhere = getattr(module, "is_elsewhere", lambda _: False)
    missing = [name for name in expected if name not in weights]
    extra = [name for name in weights if name not in expected and not is_elsewhere(name)]
    shapes = [
        f"{name}: {tuple(weights[name].shape)}, the model has {tuple(shape)}"
        for name, shape in expected.items()
        if name in weights and weights[name].shape != shape
    ]
    if not (missing or extra or shapes):
        return
    lines = [f"the weights in {info.path} are not this model's"]
    for title, found in (("not there", missing), ("not in the model", extra), ("shapes", shapes)):
        if found:
            more = f" and {len(found) - 2} more" if len(found) > 2 else ""
            lines.append(f"  {title}: {'; '.join(found[:2])}{more}")
    lines.append(
        "  to do: use the model keys of the run that wrote it (a first dimension that differs in "
        "the embedding alone: tokenizer and make_vocab_size_divisible_by)"
    )
    raise CheckpointError("\n".join(lines))


def _harmless_globals() -> list[Any]:
    """What builds a NumPy array of numbers, under the names of NumPy 1 and 2."""
    reconstruct = np.empty(0).__reduce__()[0]
    numbers = ("Bool", "Int32", "Int64", "UInt8", "UInt32", "UInt64", "Float32", "Float64")
    return [
        (reconstruct, "numpy.core.multiarray._reconstruct"),
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        *(getattr(np.dtypes, f"{kind}DType") for kind in numbers),
    ]
