"""The parameters of a whole model, and the tensors of a family that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron.checkpointing.universal import Shape, split_name
from megatron.conversion.families import Family
from megatron.conversion.places import Place
from megatron.errors import CheckpointError
from megatron.model import layout, shapes_of
from megatron.neox_arguments.sections import ModelArgs


@dataclass(frozen=True)
class Parameter:
    """A parameter of a whole model.

    Attributes:
        layer: its number in the layer list.
        inner: its name inside the layer.
        shape: of the whole tensor.
    """

    layer: int
    inner: str
    shape: Shape

    @staticmethod
    def of(name: str, shape: Shape) -> Parameter:
        """The parameter of that name in the plain form."""
        layer, inner = split_name(name)
        return Parameter(int(layer.rpartition(".")[2]), inner, shape)

    @property
    def name(self) -> str:
        """In the plain form."""
        return f"sequential.{self.layer}.{self.inner}"

    @property
    def numbers(self) -> int:
        """How many it holds."""
        return math.prod(self.shape)


def parameters_of(model: ModelArgs, rows: int) -> Iterator[Parameter]:
    """All parameters in the order of the layers, without memory for any of them.

    Args:
        rows: of the embedding and the head.
    """
    for name, shape in shapes_of(model, rows).items():
        yield Parameter.of(name, shape)


@dataclass(frozen=True)
class Counterpart:
    """Where a family keeps one parameter.

    Attributes:
        ours: the parameter.
        names: of its tensors, in the order of the pieces.
        place: how the pieces lie in the whole.
    """

    ours: Parameter
    names: tuple[str, ...]
    place: Place

    def split(self, model: ModelArgs, whole: Tensor) -> dict[str, Tensor]:
        """Their tensors by name."""
        return dict(zip(self.names, self.place.split(model, whole), strict=True))

    def shapes(self, model: ModelArgs) -> dict[str, Shape]:
        """The shapes of their tensors by name."""
        pieces = self.split(model, torch.empty(self.ours.shape, device="meta"))
        return {name: tuple(piece.shape) for name, piece in pieces.items()}

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        """Our tensor from theirs, in the order of :attr:`names`."""
        return self.place.join(model, pieces)


def listed(wrong: Sequence[str], most: int = 4) -> str:
    """The first lines about tensors that are not as they should be, indented for a message."""
    lines = [f"    {line}" for line in wrong[:most]]
    if len(wrong) > most:
        lines.append(f"    and {len(wrong) - most} more")
    return "\n".join(lines)


def counterpart(family: Family, parameter: Parameter) -> Counterpart:
    """Where ``family`` keeps ``parameter``.

    Raises:
        CheckpointError: nowhere.
    """
    module, _, kind = parameter.inner.rpartition(".")
    place = family.places.get(module)
    if place is None:
        raise CheckpointError(
            f"{parameter.name}: {family.architecture} has no such tensor\n"
            "  to do: add it to megatron/conversion/families.py"
        )
    kind = "weight" if kind == "scale" else kind  # of an RMSNorm
    number = parameter.layer - layout.FIRST_BLOCK
    names = tuple(f"{name.format(number)}.{kind}" for name in place.names)
    return Counterpart(parameter, names, place)
