"""The weights of Llama as they were published: ``consolidated.<NN>.pth``, a file for each rank that ran it.

Linear weights are [out, in]. Ranks share the rows of ``wq``, ``wk``, ``wv``, ``w1``, ``w3`` and ``output``,
the columns of ``wo`` and ``w2``; of ``tok_embeddings`` the columns in Llama 1 and 2, the rows in Llama 3.
Norms are the same on all. Where ranks outnumber the key/value heads, neighbours hold copies of ``wk`` and
``wv``.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from megatron.checkpointing.tensor_files import read_weights_file
from megatron.errors import CheckpointError

_FILE = re.compile(r"consolidated\.(\d+)\.pth")
_BY_COLUMNS = ("wo", "w2")
_SHARED = ("wk", "wv")
_TABLE = "tok_embeddings"


class RawShards:
    """All ranks' tensors as those of one model, joined as they are read.

    Args:
        folder: with the files.
        width: of the model, features.
        shared_rows: of the whole ``wk``: key/value heads times their width.

    Attributes:
        names: of all tensors.
        files: how many there are.

    Raises:
        CheckpointError: a file is missing or damaged, or they do not belong together.
    """

    def __init__(self, folder: Path, width: int, shared_rows: int) -> None:
        self._folder, self._width, self._shared_rows = folder, width, shared_rows
        self._ranks = [_tensors(path) for path in _files(folder)]
        self.files = len(self._ranks)
        first = {name: tensor.shape for name, tensor in self._ranks[0].items()}
        for rank, tensors in enumerate(self._ranks):
            other = {name: tensor.shape for name, tensor in tensors.items()}
            differ = [name for name in {**first, **other} if first.get(name) != other.get(name)]
            if differ:
                raise CheckpointError(
                    f"{folder}: its files do not belong together\n  found: {differ[0]} is "
                    f"{_told(first.get(differ[0]))} in file 0 and {_told(other.get(differ[0]))} in file "
                    f"{rank}"
                )
        self.names = frozenset(first)

    @property
    def dtype(self) -> torch.dtype:
        """Of the first tensor, which stands for all."""
        return next(iter(self._ranks[0].values())).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        shape = list(self._ranks[0][name].shape)
        dim = self._dim(name)
        if dim is not None:
            shape[dim] *= len(self._parts(name))
        return tuple(shape)

    def read(self, name: str) -> Tensor:
        """The whole tensor on the CPU, a view of the mapped file where there is one file.

        Raises:
            CheckpointError: what should be copies of each other differs.
        """
        self._require_copies(name)
        parts, dim = self._parts(name), self._dim(name)
        return parts[0] if dim is None or len(parts) == 1 else torch.cat(parts, dim=dim)

    def _dim(self, name: str) -> int | None:
        """The dimension that ranks share; None where all hold the same."""
        tensor = self._ranks[0][name]
        if tensor.dim() < 2:
            return None
        module = name.split(".")[-2]
        is_cut = module == _TABLE and tensor.size(1) != self._width
        return 1 if is_cut or module in _BY_COLUMNS else 0

    def _parts(self, name: str) -> list[Tensor]:
        """What follows each other in the whole tensor: of copies the first."""
        return [tensors[name] for tensors in self._ranks[:: self._copies(name)]]

    def _copies(self, name: str) -> int:
        """How many neighbours hold the same rows."""
        if name.split(".")[-2] not in _SHARED:
            return 1
        return max(1, self.files * self._ranks[0][name].size(0) // self._shared_rows)

    def _require_copies(self, name: str) -> None:
        copies = self._copies(name)
        for rank, tensors in enumerate(self._ranks):
            first = rank - rank % copies
            if first != rank and not torch.equal(tensors[name], self._ranks[first][name]):
                raise CheckpointError(
                    f"{self._folder}: {name}\n"
                    f"  found: {self.files * tensors[name].size(0)} rows in all files, of which "
                    f"files {first} and {rank} hold different ones\n"
                    f"  expected: {self._shared_rows} rows, as dim, n_heads and n_kv_heads say, or copies\n"
                    "  to do: look at params.json"
                )


def _files(folder: Path) -> list[Path]:
    found = {
        int(match[1]): folder / match[0]
        for match in (_FILE.fullmatch(path.name) for path in folder.iterdir())
        if match
    }
    missing = sorted(set(range(max(found, default=0) + 1)) - found.keys())
    if missing:
        raise CheckpointError(
            f"{folder}/consolidated.{missing[0]:02d}.pth is missing\n"
            f"  found: {', '.join(found[number].name for number in sorted(found)) or 'no such file'}"
        )
    return [found[number] for number in sorted(found)]


def _tensors(path: Path) -> dict[str, Tensor]:
    content = read_weights_file(path)
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _told(shape: torch.Size | None) -> str:
    return "not there" if shape is None else str(tuple(shape))
