"""Protects the gradient norm that is taken before a ZeRO-0 step."""

import math

import pytest
import torch
from torch import nn

from megatron.optimizers import global_grad_norm


class OneRank:
    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def get_model_parallel_rank(self) -> int:
        return self.rank

    def get_model_parallel_world_size(self) -> int:
        return 1

    def get_model_parallel_group(self) -> None:
        return None

    def get_pipe_parallel_world_size(self) -> int:
        return 1

    def get_pipe_parallel_group(self) -> None:
        return None


def parameter(*grad: float, sharded: bool = False) -> nn.Parameter:
    p = nn.Parameter(torch.zeros(len(grad)))
    p.grad = torch.tensor(grad)
    p.model_parallel = sharded
    return p


def test_norm_of_all_gradients() -> None:
    params = [parameter(3.0, 0.0), parameter(4.0), nn.Parameter(torch.zeros(2))]
    assert global_grad_norm(params, OneRank()) == 5.0


def test_replicated_parameters_count_on_the_first_model_rank_only() -> None:
    params = [parameter(3.0, sharded=True), parameter(4.0)]
    assert global_grad_norm(params, OneRank(rank=0)) == 5.0
    assert global_grad_norm(params, OneRank(rank=1)) == 3.0


def test_nan_and_nothing() -> None:
    assert math.isnan(global_grad_norm([parameter(float("nan")), parameter(1.0)], OneRank()))
    assert global_grad_norm([nn.Parameter(torch.zeros(2))], OneRank()) == 0.0


def test_a_rank_with_nothing_to_count_joins_in_on_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL takes no tensor of the CPU. ``meta`` stands for a device that is not it."""

    class TwoRanks(OneRank):
        def get_model_parallel_world_size(self) -> int:
            return 2

    class Seen(Exception):
        pass

    def all_reduce(tensor: torch.Tensor, group: None) -> None:
        raise Seen(tensor.device.type)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    replicated = nn.Parameter(torch.zeros(2, device="meta"))
    replicated.grad = torch.zeros(2, device="meta")
    with pytest.raises(Seen, match="meta"):
        global_grad_norm([replicated], TwoRanks(rank=1))


def test_a_copy_in_another_pipeline_stage_counts_once() -> None:
    copy = parameter(3.0)
    copy.ds_pipe_replicated = True  # type: ignore[attr-defined]
    assert global_grad_norm([parameter(4.0), copy], OneRank()) == 4.0
