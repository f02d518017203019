"""Where a family of Hugging Face keeps what one module of ours holds, and in which pieces.

How rows lie in our tensors, :mod:`megatron.model.layout` knows; how they lie in theirs is what the kinds
of place here say. ``{}`` in a name stands for the number of the layer. Linear weights are [out, in] on
both sides, so nothing but rows is ever moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs


class Place(Protocol):
    """The modules of theirs that hold one of ours.

    Attributes:
        names: of their modules, in the order of the pieces.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    def split(self, model: ModelArgs, whole: Tensor) -> Sequence[Tensor]:
        """Our tensor in their pieces: views where that is possible."""
        ...

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`."""
        ...


@dataclass(frozen=True)
class Alike:
    """One module, the same rows: also GPT-NeoX's own query_key_value, per head [q; k; v]."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def split(self, model: ModelArgs, whole: Tensor) -> Sequence[Tensor]:
        return (whole,)

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        return pieces[0]


@dataclass(frozen=True)
class Projections:
    """Queries, keys and values in a module each, head by head."""

    query: str
    key: str
    value: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.query, self.key, self.value)

    def split(self, model: ModelArgs, whole: Tensor) -> Sequence[Tensor]:
        return layout.split_query_key_value(model, whole)

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        query, key, value = pieces
        return layout.join_query_key_value(model, query, key, value)


@dataclass(frozen=True)
class InterleavedProjections(Projections):
    """The same for rotations of neighbours: features 0 and 1 of a head turn together; here 0 and d/2 do."""

    def split(self, model: ModelArgs, whole: Tensor) -> Sequence[Tensor]:
        query, key, value = super().split(model, whole)
        return _to_neighbours(model, query), _to_neighbours(model, key), value

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        query, key, value = pieces
        return super().join(model, (_to_halves(model, query), _to_halves(model, key), value))


def _to_halves(model: ModelArgs, rows: Tensor) -> Tensor:
    heads = rows.view(-1, model.head_width // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)


def _to_neighbours(model: ModelArgs, rows: Tensor) -> Tensor:
    heads = rows.view(-1, 2, model.head_width // 2, *rows.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)


@dataclass(frozen=True)
class Gated:
    """The first layer of a gated MLP: what is multiplied, and the gate that the activation sees."""

    value: str
    gate: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.value, self.gate)

    def split(self, model: ModelArgs, whole: Tensor) -> Sequence[Tensor]:
        return layout.split_gated(model, whole)

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        value, gate = pieces
        return layout.join_gated(value, gate)
