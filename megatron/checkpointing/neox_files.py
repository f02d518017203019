"""The weights that GPT-NeoX 2 wrote, as a store of parameters with the names of ours.

How its files differ from ours:

- older releases call the MLP's layers ``mlp.dense_h_to_4h`` and ``mlp.dense_4h_to_h``; in Llama's they are
  ``mlp.w1`` (gate), ``mlp.w3`` (value) and ``mlp.w2``. A rank's ``mlp.linear1`` is [value; gate];
- with ``gpt_j_residual`` every model-parallel rank adds its biases of ``attention.dense`` and ``mlp.linear2``
  before the ranks' outputs are summed: the bias of the model is the sum of the ranks' biases. Without, it is
  added once, and all ranks hold the same;
- what all ranks hold whole (norms, the positions' table) may have drifted apart: the mean counts;
- a T5 table of distances, which all layers share, is there once for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from megatron.checkpointing.tensor_files import read_shard, weight_shards
from megatron.checkpointing.universal import VALUE, EngineState, Shape, split_name
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs

_RENAMED = {
    "mlp.dense_h_to_4h": "mlp.linear1",
    "mlp.dense_4h_to_h": "mlp.linear2",
    "mlp.w2": "mlp.linear2",
}
# Of Llama's first layer, in the order in which they follow each other in ours.
_VALUE, _GATE = "mlp.w3", "mlp.w1"
_ROW_PARALLEL_BIASES = ("attention.dense.bias", "mlp.linear2.bias")
_SHARED_TABLE = "attention.rpe.weight"


class NeoXFiles:
    """GPT-NeoX's weights, of any number of model-parallel ranks, in the plain or the pipeline's form.

    Args:
        folder: ``global_step<N>``.
        model: the model's section of the configuration.
        vocab_size: see :class:`~megatron.checkpointing.universal.ParameterStore`.

    Attributes:
        size, shapes, states, engine, vocab_size: see there.

    Raises:
        CheckpointError: a file is missing or damaged, or they do not belong together.
    """

    states = (VALUE,)
    engine = EngineState()

    def __init__(self, folder: Path, model: ModelArgs, vocab_size: int | None = None) -> None:
        shards = sorted(weight_shards(folder))
        if shards != list(range(len(shards))):
            missing = min(set(range(len(shards))) - set(shards))
            raise CheckpointError(
                f"{folder}: the weights of model-parallel rank {missing} are missing: it holds those of "
                f"{', '.join(map(str, shards))}"
            )
        self.size = len(shards)
        self.vocab_size = vocab_size
        self._model = model
        self._ranks = [read_shard(folder, shard) for shard in shards]
        _require_equal(folder, self._ranks)
        # Our name → those in the files, whose rows follow each other in ours.
        self._names = _names_of(self._ranks[0])
        self._drop_copies_of_shared_table(folder)
        self.shapes: dict[str, Shape] = {name: self._shape(name) for name in self._names}

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights in the files, the first standing for all."""
        return next(iter(self._ranks[0].values())).dtype

    def read(self, state: str, name: str, rank: int) -> Tensor:
        assert state == VALUE, state
        _, inner = split_name(name)
        if self.size == 1:
            return self._part(name, 0)
        if inner in _ROW_PARALLEL_BIASES and self._model.gpt_j_residual:
            return torch.stack([part.float() for part in self._parts(name)]).sum(0)
        shape = [size * self.size for size in self.shapes[name]]
        if layout.partition(self._model, inner, shape) is not None:
            return self._part(name, rank)
        parts = self._parts(name)
        if all(torch.equal(part, parts[0]) for part in parts[1:]):
            return parts[0]
        return torch.stack([part.float() for part in parts]).mean(0)

    def _parts(self, name: str) -> list[Tensor]:
        return [self._part(name, rank) for rank in range(self.size)]

    def _part(self, name: str, rank: int) -> Tensor:
        """What a rank's files hold of ``name``."""
        pieces = [self._ranks[rank][stored] for stored in self._names[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _shape(self, name: str) -> Shape:
        first, *more = (self._ranks[0][stored].shape for stored in self._names[name])
        return (first[0] + sum(shape[0] for shape in more), *first[1:]) if more else tuple(first)

    def _drop_copies_of_shared_table(self, folder: Path) -> None:
        tables = [name for name in self._names if split_name(name)[1] == _SHARED_TABLE]
        for name in tables[1:]:
            for rank in range(self.size):
                if not torch.equal(self._part(name, rank), self._part(tables[0], rank)):
                    raise CheckpointError(
                        f"{folder}: {name} is not {tables[0]}: the stages of its pipeline have each trained "
                        "a table of distances of their own, which no model of ours has"
                    )
            del self._names[name]


def _names_of(stored: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Our names of the tensors in a file, and under which names they are there, in order."""
    names: dict[str, tuple[str, ...]] = {}
    for name in stored:
        layer, _, inner = name.partition(".mlp.")
        module, _, kind = f"mlp.{inner}".rpartition(".")
        if not inner:
            names[name] = (name,)
        elif module in (_VALUE, _GATE):
            pieces = tuple(f"{layer}.{piece}.{kind}" for piece in (_VALUE, _GATE))
            missing = [piece for piece in pieces if piece not in stored]
            if missing:
                raise CheckpointError(f"{name} is there without {missing[0]}")
            names[f"{layer}.mlp.linear1.{kind}"] = pieces
        else:
            names[f"{layer}.{_RENAMED.get(module, module)}.{kind}"] = (name,)
    return names


def _require_equal(folder: Path, ranks: list[dict[str, Tensor]]) -> None:
    """All ranks' files hold tensors of the same names and shapes."""
    first = {name: tensor.shape for name, tensor in ranks[0].items()}
    for rank, tensors in enumerate(ranks):
        other = {name: tensor.shape for name, tensor in tensors.items()}
        differ = [
            name for name in first.keys() | other.keys() if first.get(name) != other.get(name)
        ]
        if differ:
            raise CheckpointError(
                f"{folder}: its files do not belong together\n  found: {min(differ)} is "
                f"{first.get(min(differ), 'not there')} of model-parallel rank 0 and "
                f"{other.get(min(differ), 'not there')} of rank {rank}"
            )
