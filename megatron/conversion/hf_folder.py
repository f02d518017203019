"""A folder as transformers saves a model: ``config.json`` and safetensors files, one or several.

Several have an index, ``model.safetensors.index.json``, that says which tensor lies in which file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from megatron.errors import CheckpointError
from megatron.runtime.durable import sync_file, write_file

CONFIG_NAME = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        CheckpointError: there is none.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing\n  expected: a folder as transformers' save_pretrained writes it, with "
            f"{CONFIG_NAME} and {SINGLE_FILE}"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; expected an object")
    return content


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file for people."""
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


class TensorFolder:
    """The tensors of a folder, read one at a time.

    Args:
        folder: with ``model.safetensors``, or an index and the files that it names.

    Attributes:
        names: of all tensors.

    Raises:
        CheckpointError: files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _index(folder)
        self._open: dict[str, Any] = {}
        self.names = frozenset(self._file_of)
        for file in sorted(set(self._file_of.values())):
            self._open[file] = _opened(folder / file)
        for name, file in self._file_of.items():
            if name not in self._open[file].keys():  # noqa: SIM118 - no dictionary
                raise CheckpointError(f"{folder / file}: {name} is missing, {INDEX_NAME} names it")

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open[self._file_of[name]].get_slice(name).get_shape())

    @property
    def dtype(self) -> torch.dtype:
        """Of the first tensor, which stands for all."""
        return self.read(min(self.names)).dtype

    def read(self, name: str) -> Tensor:
        """A tensor on the CPU."""
        tensor: Tensor = self._open[self._file_of[name]].get_tensor(name)
        return tensor

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._folder / self._file_of[name]


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    if (folder / SINGLE_FILE).exists():
        return dict.fromkeys(_opened(folder / SINGLE_FILE).keys(), SINGLE_FILE)
    if (folder / INDEX_NAME).exists():
        found = read_json(folder / INDEX_NAME).get("weight_map")
        if isinstance(found, dict) and found:
            return {str(name): Path(str(file)).name for name, file in found.items()}
        raise CheckpointError(f"{folder / INDEX_NAME} holds no weight_map")
    old = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    raise CheckpointError(
        f"{folder} holds neither {SINGLE_FILE} nor {INDEX_NAME}\n"
        f"  found: {', '.join(old[:3]) or 'no file of weights'}\n"
        "  to do: save it with transformers' save_pretrained, which writes safetensors"
    )


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def bytes_in(text: str) -> int:
    """Bytes of a size such as ``5GB`` or ``200MiB``.

    Raises:
        CheckpointError: it is none.
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMG]?i?B?)\s*", text, flags=re.IGNORECASE)
    unit = match[2].upper() if match else "?"
    unit = unit if unit in _UNITS else f"{unit}B"
    if match is None or unit not in _UNITS or match[1].count(".") > 1:
        raise CheckpointError(f"max_shard_size: {text!r}; expected a size such as 5GB or 200MiB")
    size = int(float(match[1]) * _UNITS[unit])
    if size < 1:
        raise CheckpointError(f"max_shard_size: {text!r} is no room at all")
    return size


@dataclass
class _Shard:
    """Groups of tensors that go into one file together."""

    groups: list[Mapping[str, tuple[int, ...]]] = field(default_factory=list)
    size: int = 0


def write_tensors(
    folder: Path,
    groups: Iterable[Mapping[str, tuple[int, ...]]],
    read: Callable[[int], Mapping[str, Tensor]],
    *,
    dtype: torch.dtype,
    max_shard_size: int,
) -> int:
    """Write tensors into as few files as fit, with an index where they are several.

    One file's tensors are in memory at a time.

    Args:
        folder: exists.
        groups: names and shapes of what is read together.
        read: gives the tensors of a group by its number.
        dtype: of the files.
        max_shard_size: bytes of a file at most, unless a group alone is larger.

    Returns:
        Bytes of tensors.
    """
    width = torch.empty((), dtype=dtype).element_size()
    shards = [_Shard()]
    for group in groups:
        size = width * sum(math.prod(shape) for shape in group.values())
        if shards[-1].groups and shards[-1].size + size > max_shard_size:
            shards.append(_Shard())
        shards[-1].groups.append(group)
        shards[-1].size += size
    total, number = 0, 0
    file_of: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        file = (
            SINGLE_FILE if len(shards) == 1 else f"model-{index:05}-of-{len(shards):05}.safetensors"
        )
        tensors: dict[str, Tensor] = {}
        for _ in shard.groups:
            tensors |= {
                # Copies: pieces of one tensor share its memory, which the format does not allow.
                name: tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
                for name, tensor in read(number).items()
            }
            number += 1
        save_file(tensors, folder / file, metadata={"format": "pt"})
        sync_file(folder / file)
        total += shard.size
        file_of |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        index_content = {"metadata": {"total_size": total}, "weight_map": file_of}
        write_file(folder / INDEX_NAME, json_bytes(index_content))
    return total
