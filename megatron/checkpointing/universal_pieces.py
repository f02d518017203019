"""One rank's part of a parameter, put together from the parts that other ranks held.

:mod:`megatron.model.layout` says which runs of rows (or columns) of the whole tensor a rank holds, for any
number of ranks. So the part that is wanted is a few runs of the whole tensor, those that are stored
are a few more, and the answer is their intersections. Nothing else is read, and the whole tensor is never
made unless it is what is wanted.

Vocabulary padding: the number of rows of an embedding is rounded up to a multiple that depends on the
number of ranks. All stored rows are kept as long as there is room. Where fewer are wanted, the last ones,
which are padding, are left out; where more are wanted, each new one is a copy of the last row of padding,
which has learnt that it never occurs, or zeros where there has been no padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.same_tensors import require_same_tensors
from megatron.checkpointing.universal import ParameterStore, Shape, split_name
from megatron.model import layout
from megatron.model.layout import Partition
from megatron.neox_arguments.sections import ModelArgs


@dataclass(frozen=True)
class Part:
    """Which part of a parameter is meant.

    Attributes:
        name: of the parameter in the plain form.
        shape: of the part.
        rank: of the model-parallel rank.
        size: model-parallel ranks.
    """

    name: str
    shape: Shape
    rank: int = 0
    size: int = 1

    def partition(self, model: ModelArgs) -> Partition | None:
        """How the ranks share the parameter."""
        _, inner = split_name(self.name)
        return layout.partition(model, inner, [n * self.size for n in self.shape])


@dataclass(frozen=True)
class _Run:
    """``length`` rows of a whole tensor from ``start`` on, which lie at ``offset`` of a rank's part."""

    start: int
    length: int
    name: str
    rank: int
    offset: int


class PartReader:
    """Reads parts of the whole model's parameters, however they are split in the store.

    Args:
        store: what there is. Its shapes are known to fit (:func:`require_same_model`).
        model: the model's section of the configuration.
    """

    def __init__(self, store: ParameterStore, model: ModelArgs) -> None:
        self._store = store
        self._model = model
        # The names of stored parameters by that of the whole tensor that they are parts of.
        self._stored: dict[str, list[str]] = defaultdict(list)
        for name in store.shapes:
            self._stored[layout.whole_name(name)].append(name)

    def read(self, state: str, part: Part) -> Tensor:
        """One state of ``part`` in fp32, on the CPU; not to be written to.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        split = part.partition(self._model)
        names = self._stored[layout.whole_name(part.name)]
        if split is None:
            return self._store.read(state, names[0], 0).float()
        runs = [run for name in names for run in self._runs_of(name)]
        pieces = list(_intersections(split.indices(part.rank, part.size), runs))
        size = part.shape[split.dim]
        if len(pieces) == 1 and pieces[0][1].length == size:
            return self._of(state, pieces[0][1], split.dim).float()
        joined = torch.empty(part.shape)
        for into, run in pieces:
            joined.narrow(split.dim, into, run.length).copy_(self._of(state, run, split.dim))
        filled = sum(run.length for _, run in pieces)
        if filled < size:
            joined[filled:] = self._padding(state, names[0])
        return joined

    def _runs_of(self, name: str) -> Iterator[_Run]:
        """Where the rows of the whole tensor lie in the store; of copies the first."""
        size = self._store.size
        split = Part(name, self._store.shapes[name], size=size).partition(self._model)
        assert split is not None
        for rank in range(0, size, size // split.parts(size)):
            offset = 0
            for start, length in split.indices(rank, size):
                yield _Run(start, length, name, rank, offset)
                offset += length

    def _of(self, state: str, run: _Run, dim: int) -> Tensor:
        return self._store.read(state, run.name, run.rank).narrow(dim, run.offset, run.length)

    def _padding(self, state: str, name: str) -> Tensor:
        """The row to fill up with, [h]."""
        store = self._store
        rows = store.shapes[name][0] * store.size
        last = store.read(state, name, store.size - 1)[-1].float()
        is_padding = store.vocab_size is not None and rows > store.vocab_size
        return last if is_padding else torch.zeros_like(last)


def _intersections(
    wanted: Sequence[tuple[int, int]], runs: Sequence[_Run]
) -> Iterator[tuple[int, _Run]]:
    """What to copy for the ``wanted`` runs (start, length): (place in the part, run of a source)."""
    into = 0
    for start, length in wanted:
        for run in runs:
            low, high = max(start, run.start), min(start + length, run.start + run.length)
            if low < high:
                offset = run.offset + low - run.start
                yield into + low - start, _Run(low, high - low, run.name, run.rank, offset)
        into += length


def whole_shapes(store: ParameterStore, model: ModelArgs) -> dict[str, Shape]:
    """The shapes of the whole parameters, by their names in the whole model, in the store's order."""
    return {
        layout.whole_name(name): _whole_shape(model, Part(name, shape, size=store.size))
        for name, shape in store.shapes.items()
    }


def _whole_shape(model: ModelArgs, part: Part) -> Shape:
    """The shape of the whole tensor that the part at ``part`` belongs to.

    Where the part does not have the rows that ``model`` gives it, it is the part's own, times the ranks:
    no other model's.
    """
    split = part.partition(model)
    if split is None:
        return part.shape
    mine = sum(length for _, length in split.indices(part.rank, part.size))
    rows = part.shape[split.dim] * part.size
    if mine == part.shape[split.dim]:
        # Query, key and value rows may be two parameters of a rank, which are of one tensor.
        fused = split_name(part.name)[1].startswith("attention.query_key_value.")
        rows = sum(layout.query_key_value_rows(model)) if fused else sum(split.pieces)
    return (*part.shape[: split.dim], rows, *part.shape[split.dim + 1 :])


def require_same_model(
    info: CheckpointInfo,
    store: ParameterStore,
    model: ModelArgs,
    module: nn.Module,
    targets: Mapping[str, Shape],
    size: int,
) -> None:
    """Compare names and shapes of what is stored with those of a rank.

    Args:
        info: what ``store`` holds.
        store: what there is.
        model: the model's section of the configuration.
        module: the rank's model; a stage of a pipeline knows which names belong to the others.
        targets: the shapes of this rank's parts, by their names.
        size: model-parallel ranks that share each weight.

    Raises:
        CheckpointError: it is another model.
    """

    def the_same(name: str, there: Shape, here: Shape) -> bool:
        if there == here:
            return True
        padded_only = layout.has_vocabulary_rows(split_name(name)[1]) and there[1:] == here[1:]
        return padded_only and here[0] >= (store.vocab_size or there[0])

    wanted = {
        layout.whole_name(name): _whole_shape(model, Part(name, shape, size=size))
        for name, shape in targets.items()
    }
    require_same_tensors(info.path, whole_shapes(store, model), wanted, module, the_same=the_same)
