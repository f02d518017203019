"""Writing safetensors files, one or several, with one tensor in memory at a time.

The library that reads them can write only what is in memory whole, twice. The format is a length, a header
in JSON, and the tensors one behind the other: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.conversion.hf_folder import INDEX_NAME, SINGLE_FILE, json_bytes
from megatron.errors import CheckpointError
from megatron.runtime.durable import new_file, write_file

Shape = tuple[int, ...]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
# The header is filled up with blanks, so that tensors begin at a multiple of this, in bytes.
_ALIGNMENT = 8


def bytes_in(text: str) -> int:
    """Bytes of a size such as ``5GB`` or ``200MiB``.

    Raises:
        CheckpointError: it is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?i?B?)\s*", text, flags=re.IGNORECASE)
    unit = match[2].upper().removesuffix("B") if match else "?"
    size = int(float(match[1]) * _UNITS.get(f"{unit}B" if unit else "", 0)) if match else 0
    if size < 1:
        raise CheckpointError(f"max_shard_size: {text!r}; expected a size such as 5GB or 200MiB")
    return size


@dataclass
class _Shard:
    """Groups of tensors, by their numbers, that go into one file together; ``size`` in bytes."""

    groups: list[int] = field(default_factory=list)
    size: int = 0


def write_tensors(
    folder: Path,
    groups: Iterable[Mapping[str, Shape]],
    read: Callable[[int], Mapping[str, Tensor]],
    *,
    dtype: torch.dtype,
    max_shard_size: int,
) -> int:
    """Write tensors into as few files as fit, with an index where they are several.

    One group is in memory at a time.

    Args:
        folder: exists.
        groups: names and shapes of what is read together.
        read: gives the tensors of a group by its number.
        dtype: of the files.
        max_shard_size: bytes of a file at most, unless a group alone is larger.

    Returns:
        Bytes of tensors.
    """
    shapes = list(groups)
    shards = _planned(shapes, dtype, max_shard_size)
    file_of: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        last = len(shards)
        file = SINGLE_FILE if last == 1 else f"model-{number:05}-of-{last:05}.safetensors"
        held = {name: shape for group in shard.groups for name, shape in shapes[group].items()}
        _write_file(folder / file, held, map(read, shard.groups), dtype)
        file_of |= dict.fromkeys(held, file)
    total = sum(shard.size for shard in shards)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        write_file(folder / INDEX_NAME, json_bytes(index))
    return total


def _planned(
    shapes: list[Mapping[str, Shape]], dtype: torch.dtype, max_shard_size: int
) -> list[_Shard]:
    shards = [_Shard()]
    for number, group in enumerate(shapes):
        size = dtype.itemsize * sum(math.prod(shape) for shape in group.values())
        if shards[-1].groups and shards[-1].size + size > max_shard_size:
            shards.append(_Shard())
        shards[-1].groups.append(number)
        shards[-1].size += size
    return shards


def _write_file(
    path: Path,
    shapes: Mapping[str, Shape],
    groups: Iterable[Mapping[str, Tensor]],
    dtype: torch.dtype,
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    names = iter(shapes)
    with new_file(path) as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for group in groups:
            for name, tensor in group.items():
                assert name == next(names), f"{name} comes out of turn"
                assert tuple(tensor.shape) == shapes[name], f"{name} is {tuple(tensor.shape)}"
                file.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy().data)
