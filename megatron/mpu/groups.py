"""The process groups along the axes of the grid of ranks (:mod:`megatron.mpu.grid`).

Along the data axis ranks read different samples, along the context axis different parts of the same
ones. Both have gradients of their own tokens: what is summed over tokens, gradients and losses, is
summed over data × context, which is what DeepSpeed calls data parallel.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from megatron.errors import ConfigError
from megatron.mpu.grid import RankGrid
from megatron.runtime.world import World


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
    are made together. A group exists only where its axis has more than one rank, and that of the
    gradients wherever it is not simply all ranks, since DeepSpeed reduces over it. DeepSpeed's
    ``mpu=`` argument expects methods of these names. Which samples a rank reads is told by
    ``grid.data`` and ``place.data``.

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
        self._context_group = self._make("context") if self.grid.context > 1 else None
        self._gradient_group = self._make_gradient_group()
        self._kv_replica_group = self._make_kv_replica_group()

    def with_whole_sequences(self) -> ParallelGroups:
        """The same groups for sequences of any length, which no ranks share.

        There is no sequence parallelism, and ranks along the context axis are copies of the model.
        """
        other = copy(self)
        other.sequence_parallel = False
        other.grid = replace(self.grid, data=self.grid.data * self.grid.context, context=1)
        other.place = other.grid.coordinates(self.world.rank)
        other._context_group = None
        return other

    def _make_gradient_group(self) -> dist.ProcessGroup | None:
        if self.get_gradient_world_size() < self.world.size:
            return self._make("data", "context")
        # All ranks: the default group, if there is one (a single process needs none).
        return dist.group.WORLD if dist.is_initialized() else None

    def _make(self, *axes: str) -> dist.ProcessGroup:
        return self._make_one_of(self.grid.lines(*axes))

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
        return self._make_any_of([[ranks[0], ranks[-1]] for ranks in self.grid.lines("pipe")])

    def _make_one_of(self, lines: list[list[int]]) -> dist.ProcessGroup:
        """The same where every rank is on one of them."""
        mine = self._make_any_of(lines)
        assert mine is not None, f"rank {self.world.rank} is on none of {lines}"
        return mine

    def _make_any_of(self, lines: list[list[int]]) -> dist.ProcessGroup | None:
        """Make a group of each line, on all ranks in the same order; the one that this rank is on."""
        mine: dist.ProcessGroup | None = None
        # A new group would not wait as long as the first one, but as torch's backends do by themselves.
        patience = timedelta(seconds=self.world.collective_timeout_s)
        for ranks in lines:
            group = dist.new_group(ranks, timeout=patience)
            if self.world.rank in ranks:
                mine = group
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

    def get_context_parallel_rank(self) -> int:
        """Place among the ranks that share each sequence."""
        return self.place.context

    def get_context_parallel_world_size(self) -> int:
        """Number of ranks that share each sequence."""
        return self.grid.context

    def get_context_parallel_group(self) -> dist.ProcessGroup | None:
        """Group of the ranks that share each sequence; None where this rank has it whole."""
        return self._context_group

    def get_gradient_rank(self) -> int:
        """Place among the ranks that hold the same weights and see different tokens."""
        return self.place.data * self.grid.context + self.place.context

    def get_gradient_world_size(self) -> int:
        """Number of ranks that hold the same weights and see different tokens: data × context."""
        return self.grid.data * self.grid.context

    def get_gradient_group(self) -> dist.ProcessGroup | None:
        """Group over which gradients and losses are summed and ZeRO's shards are spread.

        None in a process without collectives.
        """
        return self._gradient_group

    # DeepSpeed's names: it averages gradients over what it calls data parallel.
    get_data_parallel_rank = get_gradient_rank
    get_data_parallel_world_size = get_gradient_world_size
    get_data_parallel_group = get_gradient_group

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
