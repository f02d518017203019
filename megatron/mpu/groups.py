"""The layout of ranks: a grid of (pipe, data, context, model), and the process groups along its axes.

The last axis varies fastest: the ranks that share one layer's weights are neighbours, which puts
them on one node. This is GPT-NeoX's order on DeepSpeed, with a context axis of size 1 by default.
"""

from __future__ import annotations

from copy import copy
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


def _replicas(num_kv_heads: int | None, model_parallel_size: int) -> int:
    """How many neighbouring model-parallel ranks hold the same key/value heads."""
    if num_kv_heads is None or num_kv_heads % model_parallel_size == 0:
        return 1
    if model_parallel_size % num_kv_heads:
        raise ConfigError(
            f"model_parallel_size: {model_parallel_size} ranks cannot share {num_kv_heads} key/value "
            "heads evenly; change it or num_kv_heads until one is a multiple of the other"
        )
    return model_parallel_size // num_kv_heads


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
        sequence_parallel: model-parallel ranks also share the tokens of what they would otherwise
            compute alike (norms, dropout, residuals). Without effect on a model axis of one rank.
        num_kv_heads: the model's key/value heads. Where they are fewer than model-parallel ranks,
            neighbours hold the same one.

    Attributes:
        sequence_parallel: whether tokens are shared.
        kv_replicas: model-parallel ranks that hold the same key/value heads.

    Raises:
        ConfigError: the sizes do not divide the number of ranks, or each other.
    """

    def __init__(
        self,
        world: World,
        model_parallel_size: int = 1,
        pipe_parallel_size: int = 1,
        context_parallel_size: int = 1,
        *,
        sequence_parallel: bool = False,
        num_kv_heads: int | None = None,
    ) -> None:
        self.world = world
        self.grid = RankGrid.of(
            world.size,
            pipe=pipe_parallel_size,
            context=context_parallel_size,
            model=model_parallel_size,
        )
        self.place = self.grid.coordinates(world.rank)
        self.sequence_parallel = sequence_parallel and self.grid.model > 1
        self.kv_replicas = _replicas(num_kv_heads, self.grid.model)
        self._model_group = self._make("model") if self.grid.model > 1 else None
        self._pipe_group = self._make("pipe") if self.grid.pipe > 1 else None
        self._pipe_ends_group = self._make_pipe_ends_group()
        self._data_group = self._data_parallel_group()
        self._kv_replica_group = self._make_kv_replica_group()

    def with_whole_sequences(self) -> ParallelGroups:
        """The same groups without sequence parallelism, for sequences of any length."""
        other = copy(self)
        other.sequence_parallel = False
        return other

    def _data_parallel_group(self) -> dist.ProcessGroup | None:
        if self.grid.data < self.world.size:
            return self._make("data")
        # All ranks: the default group, if there is one (a single process needs none).
        return dist.group.WORLD if dist.is_initialized() else None

    def _make(self, axis: str) -> dist.ProcessGroup:
        return self._make_one_of(self.grid.lines(axis))

    def _make_kv_replica_group(self) -> dist.ProcessGroup | None:
        if self.kv_replicas == 1 or self.kv_replicas == self.grid.model:
            return None if self.kv_replicas == 1 else self._model_group
        return self._make_one_of(
            [
                ranks[start : start + self.kv_replicas]
                for ranks in self.grid.lines("model")
                for start in range(0, len(ranks), self.kv_replicas)
            ]
        )

    def _make_pipe_ends_group(self) -> dist.ProcessGroup | None:
        if self.grid.pipe <= 2:
            return self._pipe_group
        mine: dist.ProcessGroup | None = None
        for ranks in self.grid.lines("pipe"):
            group = dist.new_group([ranks[0], ranks[-1]])
            if self.world.rank in (ranks[0], ranks[-1]):
                mine = group
        return mine

    def _make_one_of(self, lines: list[list[int]]) -> dist.ProcessGroup:
        """Make a group of each line, on all ranks in the same order; the one that this rank is on."""
        mine: dist.ProcessGroup | None = None
        for ranks in lines:
            group = dist.new_group(ranks)
            if self.world.rank in ranks:
                mine = group
        assert mine is not None, f"rank {self.world.rank} is on none of {lines}"
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

    def get_kv_replica_group(self) -> dist.ProcessGroup | None:
        """Group of the ranks that hold the same key/value heads; None where this rank alone does."""
        return self._kv_replica_group

    @property
    def is_first_kv_replica(self) -> bool:
        """Whether no model-parallel rank before this one holds the same key/value heads."""
        return self.place.model % self.kv_replicas == 0

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

    def get_pipe_ends_group(self) -> dist.ProcessGroup | None:
        """Group of the first and the last stage of a pipeline; None between them, and without one."""
        return self._pipe_ends_group
