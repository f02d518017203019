"""Protects dropout on model-parallel ranks: alike where they compute the same, apart where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron.losses import loss_sum
from megatron.mpu import ParallelGroups
from megatron.mpu.random import own_draws
from megatron.runtime.seeds import seed_dropout
from megatron.runtime.world import World
from tests.support.models import SINGLE, tiny_model
from tests.support.ranks import run_ranks

TOKENS = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(1))
DROPOUT = {"hidden_dropout": 0.2, "attention_dropout": 0.2, "init_method": "small_init"}
SEEDS = 16


def draws(groups: ParallelGroups) -> dict[str, list[float]]:
    def numbers() -> list[float]:
        return torch.rand(3).tolist()

    seed_dropout(5, step=0, micro_batch=0, data_rank=groups.get_data_parallel_rank())
    before = numbers()
    with own_draws(groups):
        own = numbers()
    between = numbers()
    with own_draws(groups):
        more = numbers()
    return {"before": before, "own": own, "between": between, "more": more}


def step(groups: ParallelGroups, *, recompute: bool) -> tuple[float, list[torch.Tensor]]:
    model = tiny_model(64, groups=groups, checkpoint_activations=recompute, **DROPOUT)
    seed_dropout(5, step=0, micro_batch=0, data_rank=0)
    loss = loss_sum(model(TOKENS[:, :-1]), TOKENS[:, 1:], torch.ones(2, 16).bool(), groups)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@torch.no_grad()
def losses(groups: ParallelGroups) -> list[float]:
    """The loss of one model and batch under many dropouts."""
    model = tiny_model(64, groups=groups, **DROPOUT)
    found = []
    for seed in range(SEEDS):
        seed_dropout(seed, step=0, micro_batch=0, data_rank=0)
        logits = model(TOKENS[:, :-1])
        found.append(loss_sum(logits, TOKENS[:, 1:], torch.ones(2, 16).bool(), groups).item() / 32)
    return found


def on_two_ranks(world: World) -> tuple[dict[str, Any], dict[str, list[float]]]:
    found: dict[str, Any] = {}
    numbers = draws(ParallelGroups(world, model_parallel_size=2))
    for sequence in (False, True):
        groups = ParallelGroups(world, model_parallel_size=2, sequence_parallel=sequence)
        (loss, grads), (again, recomputed) = (step(groups, recompute=how) for how in (False, True))
        found[f"sequence {sequence}"] = {
            "recomputed the same": loss == again
            and all(map(torch.equal, grads, recomputed))
            and len(grads) == len(recomputed),
            "losses": losses(groups),
        }
    return found, numbers


def test_one_rank_draws_from_one_stream() -> None:
    """What a run without model parallelism draws does not depend on where it is drawn."""
    found = draws(SINGLE)
    seed_dropout(5, step=0, micro_batch=0, data_rank=0)
    assert list(found.values()) == [torch.rand(3).tolist() for _ in range(4)]


@pytest.mark.ranks
def test_ranks_draw_alike_and_apart_with_the_statistics_of_one_rank_and_exactly_again() -> None:
    one = torch.tensor(losses(SINGLE), dtype=torch.float64)
    (found, first), (other, second) = run_ranks(2, on_two_ranks)
    for name in ("before", "between"):
        assert first[name] == second[name]
    for name in ("own", "more"):
        assert first[name] != second[name]
    assert len({tuple(numbers) for numbers in first.values()}) == 4
    assert found == other  # the ranks agree on the loss
    for case, numbers in found.items():
        assert numbers["recomputed the same"], case
        got = torch.tensor(numbers["losses"], dtype=torch.float64)
        assert len(set(got.tolist())) == SEEDS, case
        error = ((one.var() + got.var()) / SEEDS).sqrt()
        assert abs(one.mean() - got.mean()) < 4 * error, case
        assert 0.4 < got.std() / one.std() < 2.5, case
