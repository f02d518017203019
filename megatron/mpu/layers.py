"""Linear layers and the embedding, split over the ranks of a model-parallel group.

Shapes: i inputs, o outputs, v vocabulary, h hidden; ``size`` model-parallel ranks. Each rank holds
1 / size of the split dimension, and its parameters are marked with ``model_parallel = True`` (what
DeepSpeed looks at to count replicated parameters once). The split follows Shoeybi et al., Megatron-LM
(2019), section 3: a column-parallel layer, then a row-parallel one, with one sum between ranks.

Parameters are allocated, not initialised: the model fills them from the tensors of the whole layer,
so that their values do not depend on the number of ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron.errors import ConfigError
from megatron.mpu.collectives import (
    gather_from_model_parallel,
    leave_parallel_region,
    replicated_parameters,
)
from megatron.mpu.groups import ParallelGroups
from megatron.mpu.split_linear import column_linear, row_linear


def divide(whole: int, parts: int, what: str) -> int:
    """``whole / parts``.

    Raises:
        ConfigError: it is not a whole number.
    """
    if whole % parts:
        raise ConfigError(
            f"model_parallel_size: {what} is {whole}, which {parts} model-parallel ranks cannot share "
            "evenly; change the size of one of them"
        )
    return whole // parts


def sharded(*shape: int) -> nn.Parameter:
    """A parameter of ``shape`` that is a rank's own part of a whole one."""
    parameter = nn.Parameter(torch.empty(*shape))
    parameter.model_parallel = True  # type: ignore[attr-defined]
    return parameter


class ColumnParallelLinear(nn.Module):
    """``y = x @ weight.T + bias`` with the outputs split over ranks.

    Args:
        in_features: i, whole on every rank.
        out_features: o, of which each rank computes o / size.
        groups: the layout of ranks.
        bias: add a bias (split like the outputs).
        gather_output: return all o outputs on every rank instead of this rank's part.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        groups: ParallelGroups,
        bias: bool = True,
        gather_output: bool = False,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.gather_output = gather_output
        size = groups.get_model_parallel_world_size()
        mine = divide(out_features, size, "the width of a layer's output")
        self.weight = sharded(mine, in_features)
        self.bias = sharded(mine) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., i] -> [..., o / size], or [..., o] with ``gather_output``."""
        y = column_linear(x, self.weight, self.bias, self.groups)
        return gather_from_model_parallel(y, self.groups) if self.gather_output else y


class QueryKeyValueLinear(nn.Module):
    """The projection to queries, keys and values where ranks are more than key/value heads.

    Queries are split over ranks as in :class:`ColumnParallelLinear`; the keys and values of a head are
    computed by all ranks whose queries look at it. These hold equal copies of its rows: their gradients
    are summed over the copies, and only the first copy is marked, so that norms count it once.

    Args:
        in_features: i, whole on every rank.
        query_features: rows of all queries, of which each rank computes 1 / size.
        key_value_features: rows of all keys and all values, of which each rank computes
            kv_replicas / size.
        groups: the layout of ranks.
        bias: add a bias (held like the rows).
    """

    def __init__(
        self,
        in_features: int,
        query_features: int,
        key_value_features: int,
        *,
        groups: ParallelGroups,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.groups = groups
        size = groups.get_model_parallel_world_size()
        queries = divide(query_features, size, "the width of the queries")
        shared = key_value_features // (size // groups.kv_replicas)
        self.query_weight = sharded(queries, in_features)
        self.query_bias = sharded(queries) if bias else None
        self.key_value_weight = self._replicated(shared, in_features)
        self.key_value_bias = self._replicated(shared) if bias else None

    def _replicated(self, *shape: int) -> nn.Parameter:
        parameter = nn.Parameter(torch.empty(*shape))
        parameter.model_parallel = self.groups.is_first_kv_replica  # type: ignore[attr-defined]
        return parameter

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, i] -> [b, s, rows of this rank]: its queries, then its keys, then its values."""
        weight, bias = replicated_parameters(
            self.groups, self.key_value_weight, self.key_value_bias
        )
        if self.query_bias is not None and bias is not None:
            bias = torch.cat((self.query_bias, bias))
        return column_linear(x, torch.cat((self.query_weight, weight)), bias, self.groups)


class RowParallelLinear(nn.Module):
    """``y = x @ weight.T + bias`` with the inputs split over ranks and the outputs summed.

    Args:
        in_features: i, of which each rank holds i / size.
        out_features: o, whole on every rank.
        groups: the layout of ranks.
        bias: add a bias, once, after the sum (whole on every rank).
    """

    def __init__(
        self, in_features: int, out_features: int, *, groups: ParallelGroups, bias: bool = True
    ) -> None:
        super().__init__()
        self.groups = groups
        size = groups.get_model_parallel_world_size()
        self.weight = sharded(
            out_features, divide(in_features, size, "the width of a layer's input")
        )
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., i / size] -> [..., o]."""
        return row_linear(x, self.weight, self.bias, self.groups)


class VocabParallelEmbedding(nn.Module):
    """Rows of a table by number, with the rows split over ranks.

    Args:
        num_embeddings: v, of which each rank holds v / size.
        embedding_dim: h.
        groups: the layout of ranks.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.groups = groups
        size = groups.get_model_parallel_world_size()
        self.rows = divide(num_embeddings, size, "the padded vocabulary")
        self.first_row = self.rows * groups.get_model_parallel_rank()
        self.weight = sharded(self.rows, embedding_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [b, s] -> [b, s, h], or [b, s / size, h] with sequence parallelism."""
        if self.groups.get_model_parallel_world_size() == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.first_row
        elsewhere = (local < 0) | (local >= self.rows)
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return leave_parallel_region(found, self.groups)
