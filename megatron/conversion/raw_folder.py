"""A folder as Llama and Mistral are handed out: ``params.json`` and ``consolidated.<NN>.pth``, a file a rank.

The files are those of a tensor-parallel run: a rank holds some rows of what it computes heads and features
with (``wq``, ``wk``, ``wv``, ``w1``, ``w3``, ``output``), some columns of what brings them together (``wo``,
``w2``), and norms whole. Of the embedding it has columns, from Llama 3 on rows. Where ranks are more than
key/value heads, neighbours hold the same one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.checkpointing.tensor_files import read_safely
from megatron.conversion.hf_folder import read_json
from megatron.errors import CheckpointError

PARAMS_NAME = "params.json"
_FILE = re.compile(r"consolidated\.(\d+)\.pth")
_ROWS = frozenset({"wq", "wk", "wv", "w1", "w3", "output"})
_COLUMNS = frozenset({"wo", "w2"})
_EMBEDDING = "tok_embeddings"


class RawFolder:
    """The tensors of such a folder, put together from its files one at a time.

    Args:
        folder: with the files.
        params: the content of ``params.json``.

    Attributes:
        names: of all tensors.
        shards: each rank's tensors, mapped: what is not used is not read.

    Raises:
        CheckpointError: files are missing or damaged, or do not belong together.
    """

    def __init__(self, folder: Path, params: dict[str, Any]) -> None:
        self._params = params
        self.shards = [read_safely(path) for path in _files(folder)]
        for number, shard in enumerate(self.shards):
            others = [name for name, value in shard.items() if not isinstance(value, Tensor)]
            differ = shard.keys() ^ self.shards[0].keys()
            if differ or others:
                raise CheckpointError(
                    f"{folder}: file {number} does not belong to file 0\n"
                    f"  found: {min(differ or others)} in only one of them, or no tensor"
                )
        self.names = frozenset(self.shards[0])

    @property
    def dtype(self) -> torch.dtype:
        """Of the embedding, which stands for all."""
        dtype: torch.dtype = self._of_first(f"{_EMBEDDING}.weight").dtype
        return dtype

    def shape(self, name: str) -> tuple[int, ...]:
        sizes, axis = list(self._of_first(name).shape), self.axis(name)
        if axis is not None:
            sizes[axis] = sum(part.size(axis) for part in self._parts(name))
        return tuple(sizes)

    def read(self, name: str) -> Tensor:
        """A tensor on the CPU, of the whole model."""
        axis = self.axis(name)
        return self._of_first(name) if axis is None else torch.cat(self._parts(name), axis)

    def axis(self, name: str) -> int | None:
        """The dimension along which the ranks share a tensor; None where each has it whole."""
        module = name.removesuffix(".weight").rpartition(".")[2]
        if len(self.shards) == 1 or module not in _ROWS | _COLUMNS | {_EMBEDDING}:
            return None
        if module == _EMBEDDING:
            return 0 if self._of_first(name).size(1) == self._params["dim"] else 1
        return 0 if module in _ROWS else 1

    def _of_first(self, name: str) -> Tensor:
        if name not in self.names:
            raise CheckpointError(f"{name} is not there")
        tensor: Tensor = self.shards[0][name]
        return tensor

    def _parts(self, name: str) -> list[Tensor]:
        parts = [shard[name] for shard in self.shards]
        heads = self._params.get("n_kv_heads") or self._params["n_heads"]
        if name.endswith((".wk.weight", ".wv.weight")) and heads < len(parts):
            return parts[:: len(parts) // heads]
        return parts


def read_params(folder: Path) -> dict[str, Any]:
    """The content of ``params.json``, which has what every such model needs.

    Raises:
        CheckpointError: it is missing or says too little.
    """
    path = folder / PARAMS_NAME
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing\n  expected: a folder as Llama is handed out, with {PARAMS_NAME} and "
            "consolidated.00.pth\n  to do: name that folder, or its parent with --model_size; one with "
            "config.json is for convert_hf_to_neox.py"
        )
    params = read_json(path)
    params.update(params.pop("model", None) or {})
    for name in ("dim", "n_layers", "n_heads"):
        if not isinstance(params.get(name), int):
            raise CheckpointError(
                f"{path}: {name}\n  found: {params.get(name)!r}\n  expected: a number"
            )
    return params


def _files(folder: Path) -> list[Path]:
    found = {int(m[1]): path for path in folder.iterdir() if (m := _FILE.fullmatch(path.name))}
    if sorted(found) != list(range(len(found))) or not found:
        raise CheckpointError(
            f"{folder}\n  found: {', '.join(path.name for _, path in sorted(found.items())) or 'no weights'}"
            "\n  expected: consolidated.00.pth and, of several ranks, all of them without a gap"
        )
    return [path for _, path in sorted(found.items())]
