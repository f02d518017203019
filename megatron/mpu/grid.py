"""The layout of ranks: a grid of (pipe, data, context, model).

The last axis varies fastest: the ranks that share one layer's weights are neighbours, which puts
them on one node. This is GPT-NeoX's order on DeepSpeed, with a context axis of size 1 by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from megatron.errors import ConfigError


class Coordinates(NamedTuple):
    """A rank's place on each axis, counted from 0."""

    pipe: int
    data: int
    context: int
    model: int


@dataclass(frozen=True)
class RankGrid:
    """Sizes of the axes and the arithmetic between global ranks and places on the grid."""

    pipe: int = 1
    data: int = 1
    context: int = 1
    model: int = 1

    @staticmethod
    def of(world_size: int, *, pipe: int = 1, context: int = 1, model: int = 1) -> RankGrid:
        """The grid of ``world_size`` ranks; the data axis takes what the others leave.

        Raises:
            ConfigError: the other axes do not divide the number of ranks.
        """
        block = pipe * context * model
        if block < 1 or world_size % block:
            raise ConfigError(
                f"layout of ranks: pipe {pipe} x context {context} x model {model} = {block} ranks "
                f"for one copy of the model, but the run has {world_size}: it must be a multiple. "
                f"Start {block} processes or a multiple (--num_gpus {block} in front of the script), or "
                "change pipe_parallel_size, context_parallel_size or model_parallel_size"
            )
        return RankGrid(pipe, world_size // block, context, model)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Sizes in the order of the axes."""
        return (self.pipe, self.data, self.context, self.model)

    def coordinates(self, rank: int) -> Coordinates:
        """Where global ``rank`` sits."""
        rank, model = divmod(rank, self.model)
        rank, context = divmod(rank, self.context)
        pipe, data = divmod(rank, self.data)
        return Coordinates(pipe, data, context, model)

    def rank(self, place: Coordinates) -> int:
        """The global rank at ``place``."""
        flat = (place.pipe * self.data + place.data) * self.context + place.context
        return flat * self.model + place.model

    def lines(self, *axes: str) -> list[list[int]]:
        """All lists of global ranks that differ along ``axes`` alone, each in ascending order."""
        sizes = list(zip(Coordinates._fields, self.sizes, strict=True))
        fixed = product(*(range(1 if name in axes else n) for name, n in sizes))
        moves = list(product(*(range(n if name in axes else 1) for name, n in sizes)))
        return [
            [self.rank(Coordinates(*map(sum, zip(start, move, strict=True)))) for move in moves]
            for start in fixed
        ]
