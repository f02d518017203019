"""A folder as transformers saves a model: ``config.json`` and safetensors files, one or several.

Several have an index, ``model.safetensors.index.json``, that says which tensor lies in which file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatron.errors import CheckpointError

CONFIG_NAME = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"


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
        """Of the first tensor, which stands for all; none of its numbers is read."""
        name = min(self.names)
        piece = self._open[self._file_of[name]].get_slice(name)
        tensor: Tensor = piece[:0] if piece.get_shape() else self.read(name)
        return tensor.dtype

    def read(self, name: str) -> Tensor:
        """A tensor on the CPU."""
        tensor: Tensor = self._open[self._file_of[name]].get_tensor(name)
        return tensor


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
