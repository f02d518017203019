"""The layout of ranks: a grid of (pipe, data, context, model), and the process groups along its axes.

The last axis varies fastest: the ranks that share one layer's weights are neighbours, which puts
them on one node. This is GPT-NeoX's order on DeepSpeed, with a context axis of size 1 by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch.distributed as dist

from megatron.errors import ConfigError
from megatron.runtime.world import World


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
                "Change the number of processes, pipe_parallel_size or model_parallel_size"
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

    def lines(self, axis: str) -> list[list[int]]:
        """All lists of global ranks that differ along ``axis`` alone, each in the axis' order."""
        fixed = [range(1) if name == axis else range(n) for name, n in self._axes()]
        size: int = getattr(self, axis)
        return [
            [self.rank(Coordinates(*start)._replace(**{axis: i})) for i in range(size)]
            for start in product(*fixed)
        ]

    def _axes(self) -> list[tuple[str, int]]:
        return list(zip(Coordinates._fields, self.sizes, strict=True))


class ParallelGroups:
    """This rank's place in the layout and the process groups it takes part in.

    Creating it is collective: every rank of the run does so at the same point, because process groups
    are made together. A group exists only where its axis has more than one rank, and for the data
    axis wherever it is not simply all ranks, since DeepSpeed reduces gradients over it. The methods
    are named as DeepSpeed's ``mpu=`` argument expects them.

    Args:
        world: this process among all.
        model_parallel_size: ranks that share each layer's weights (tensor parallelism).
        pipe_parallel_size: stages of the pipeline.
        context_parallel_size: ranks that share each sequence.

    Raises:
        ConfigError: the sizes do not divide the number of ranks.
    """

    def __init__(
        self,
        world: World,
        model_parallel_size: int = 1,
        pipe_parallel_size: int = 1,
        context_parallel_size: int = 1,
    ) -> None:
        self.world = world
        self.grid = RankGrid.of(
            world.size,
            pipe=pipe_parallel_size,
            context=context_parallel_size,
            model=model_parallel_size,
        )
        self.place = self.grid.coordinates(world.rank)
        self._model_group = self._make("model") if self.grid.model > 1 else None
        self._pipe_group = self._make("pipe") if self.grid.pipe > 1 else None
        self._data_group = self._data_parallel_group()

    def _data_parallel_group(self) -> dist.ProcessGroup | None:
        if self.grid.data < self.world.size:
            return self._make("data")
        # All ranks: the default group, if there is one (a single process needs none).
        return dist.group.WORLD if dist.is_initialized() else None

    def _make(self, axis: str) -> dist.ProcessGroup:
        mine: dist.ProcessGroup | None = None
        for ranks in self.grid.lines(axis):
            group = dist.new_group(ranks)
            if self.world.rank in ranks:
                mine = group
        assert mine is not None, f"rank {self.world.rank} is on no {axis} line"
        return mine

    def get_model_parallel_rank(self) -> int:
        """Place among the ranks that share each layer's weights."""
        return self.place.model

    def get_model_parallel_world_size(self) -> int:
        """Number of ranks that share each layer's weights."""
        return self.grid.model

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        """Group of the ranks that share each layer's weights; None where this rank holds them whole."""
        return self._model_group

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group

    def get_data_parallel_rank(self) -> int:
        """Place among the copies of the model."""
        return self.place.data

    def get_data_parallel_world_size(self) -> int:
        """Number of copies of the model."""
        return self.grid.data

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """Group over which gradients are averaged; None in a process without collectives."""
        return self._data_group

    def get_pipe_parallel_rank(self) -> int:
        """This rank's stage of the pipeline."""
        return self.place.pipe

    def get_pipe_parallel_world_size(self) -> int:
        """Number of stages of the pipeline."""
        return self.grid.pipe

    def get_pipe_parallel_group(self) -> dist.ProcessGroup | None:
        """Group of the stages of one pipeline; None without one."""
        return self._pipe_group
