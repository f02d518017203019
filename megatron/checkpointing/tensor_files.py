"""Files of tensors, read so that nothing in them can run code.

Files are read with ``weights_only=True``: a pickle from elsewhere could run any code. Beside tensors
and plain containers only the NumPy globals of :func:`_harmless_globals` pass, with which GPT-NeoX
stores generator states. Files of weights may hold other objects too, which are not made
(:mod:`~megatron.checkpointing.inert_objects`).

Two forms exist: ``mp_rank_<MM>_model_states.pt`` holds a plain module's tensors under ``module``;
a pipeline leaves ``module`` empty and has a file ``layer_<LL>-model_<MM>-model_states.pt`` for each
layer, whose tensors bear names inside the layer: they are ``sequential.<L>.<name>`` of the plain
form.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatron.checkpointing.inert_objects import load_among_objects
from megatron.errors import CheckpointError

MODEL_FILE = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")

# Old files carry this buffer; it follows from the configuration.
_DERIVED = re.compile(r".*\brotary_emb\.inv_freq")

# What a file that is not what it should be makes torch.load and DeepSpeed raise.
BROKEN_FILE = (
    OSError,
    RuntimeError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def is_weights_file(name: str) -> bool:
    """Whether a file of this name holds weights."""
    return bool(_LAYER_FILE.fullmatch(name) or MODEL_FILE.fullmatch(name))


def weight_shards(folder: Path) -> set[int]:
    """The model-parallel ranks whose weights lie in ``folder``.

    Raises:
        CheckpointError: there are none.
    """
    names = sorted(entry.name for entry in folder.iterdir())
    shards = {int(m[2]) for m in map(_LAYER_FILE.fullmatch, names) if m}
    shards = shards or {int(m[1]) for m in map(MODEL_FILE.fullmatch, names) if m}
    if not shards:
        raise CheckpointError(
            f"{folder} holds no weights\n  expected: mp_rank_00_model_states.pt or "
            "layer_00-model_00-model_states.pt and so on"
        )
    return shards


def read_shard(folder: Path, model_rank: int) -> dict[str, Tensor]:
    """The tensors of one of the :func:`weight_shards`, as :func:`read_weights` gives them."""
    names = sorted(entry.name for entry in folder.iterdir())
    layer_files = [m for m in map(_LAYER_FILE.fullmatch, names) if m]
    if not layer_files:
        path = folder / f"mp_rank_{model_rank:02d}_model_states.pt"
        return _tensors(path, read_weights_file(path).get("module"))
    weights = {}
    for match in sorted(layer_files, key=lambda match: int(match[1])):
        if int(match[2]) == model_rank:
            path = folder / match[0]
            for name, tensor in _tensors(path, read_weights_file(path)).items():
                weights[f"sequential.{int(match[1])}.{name}"] = tensor
    return weights


def read_safely(path: Path) -> dict[str, Any]:
    """A file of tensors, mapped on the CPU, of which nothing can run code.

    Raises:
        CheckpointError: it is missing, damaged, or holds other things than tensors.
    """
    try:
        content = _load(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except BROKEN_FILE as error:
        blocked = _BLOCKED.search(str(error))
        if blocked:
            raise CheckpointError(
                f"{path}\n  found: a Python object of the kind {blocked[1]}\n"
                "  expected: tensors, numbers and plain containers; others are not loaded, because "
                "they could run code"
            ) from error
        raise _damaged(path, error) from error
    return _dictionary(path, content)


def read_weights_file(path: Path) -> dict[str, Any]:
    """The same of a file of weights, in which other programs may have put objects of theirs.

    These are :class:`~megatron.checkpointing.inert_objects.Inert`; none of their code runs.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        return _dictionary(path, _load(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except BROKEN_FILE as error:
        if not _BLOCKED.search(str(error)):
            raise _damaged(path, error) from error
    try:
        return _dictionary(path, load_among_objects(path))
    except BROKEN_FILE as error:
        raise _damaged(path, error) from error


# How torch says that a file holds what it does not load.
_BLOCKED = re.compile(r"GLOBAL ([\w.]+)")


def _load(path: Path) -> object:
    with torch.serialization.safe_globals(_harmless_globals()):
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            # Files from before torch 1.6 cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True)


def _damaged(path: Path, error: Exception) -> CheckpointError:
    lines = str(error).splitlines() or [type(error).__name__]
    return CheckpointError(
        f"{path} is damaged: {lines[0]}\n  to do: restore it, or use another checkpoint"
    )


def _dictionary(path: Path, content: object) -> dict[str, Any]:
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
