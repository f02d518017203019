"""Protects context parallelism: ranks that share each sequence compute what one process does.

Positions, documents and attention must be those of whole sequences, though no rank sees one outside of
attention. One world runs all small cases: a world costs more than its work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.step_batch import StepBatch
from megatron.losses import loss_sum
from megatron.model import layout
from megatron.mpu import ParallelGroups
from megatron.runtime.world import World
from megatron.training.forward import logits_of
from tests.support.models import SINGLE, off_by, tiny_args, tiny_model
from tests.support.ranks import run_ranks
from tools.benchmarks.measuring import kept_for_backward

LOUD = {"init_method": "small_init", "output_layer_init_method": "small_init"}
APART = Boundaries(reset_position_ids=True, reset_attention_mask=True)


@dataclass(frozen=True)
class Case:
    """Attributes: the layout, the model's ``shape``, and whether documents are kept ``apart``."""

    context: int
    model: int = 1
    sequence: bool = False
    apart: bool = False
    shape: tuple[tuple[str, Any], ...] = ()
    length: int = 16
    recompute: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        longest = {"seq_length": self.length, "max_position_embeddings": self.length}
        return {**LOUD, **longest, **dict(self.shape)}


def batch_of(case: Case) -> StepBatch:
    """Two sequences of documents of which none begins or ends where a rank's part does."""
    random = torch.Generator().manual_seed(1)
    length = case.length
    places = torch.tensor([[0, 0.3, 0.71], [0, 0.45, 2]]).mul(length).int().clamp(max=length)
    return StepBatch(
        tokens=torch.randint(0, 64, (1, 2, length + 1), generator=random),
        loss_mask=torch.rand(1, 2, length, generator=random) < 0.8,
        first_sample=0,
        num_samples=2,
        documents=DocumentStarts(places[None], APART, length) if case.apart else None,
    )


def step(case: Case, groups: ParallelGroups) -> tuple[float, dict[str, Tensor]]:
    """The loss, and this rank's gradients by name, summed over the tokens of all ranks."""
    model = tiny_model(64, groups=groups, checkpoint_activations=case.recompute, **case.changes)
    batch = batch_of(case).part_of_sequences(groups.place.context, groups.grid.context)
    loss = loss_sum(logits_of(model, batch, 0), batch.targets[0], batch.loss_mask[0], groups)
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    total = loss.detach().clone()
    if groups.get_gradient_world_size() > 1:
        for tensor in (total, *gradients.values()):
            dist.all_reduce(tensor, group=groups.get_gradient_group())
    return total.item(), gradients


def kept_bytes(case: Case, groups: ParallelGroups) -> int:
    """Bytes of what the forward pass keeps for the backward pass, weights left out."""
    model = tiny_model(64, groups=groups, **case.changes)
    batch = batch_of(case).part_of_sequences(groups.place.context, groups.grid.context)
    with kept_for_backward(model) as kept:
        logits = logits_of(model, batch, 0)
    assert logits.requires_grad
    return sum(kept.values())


def compare(world: World, cases: list[Case]) -> list[tuple[float, tuple[str, float]]]:
    """Of each case the relative deviation of the loss, and the worst gradient."""
    found = []
    for case in cases:
        groups = ParallelGroups(
            world,
            case.model,
            context_parallel_size=case.context,
            sequence_parallel=case.sequence,
            num_kv_heads=tiny_args(**case.changes).kv_heads,
        )
        assert groups.grid.data == 1
        loss, gradients = step(case, groups)
        alone, whole = step(replace(case, recompute=False), SINGLE)
        off = off_by(gradients, whole, groups, tiny_args(**case.changes))
        found.append((abs(loss - alone) / alone, max(off.items(), key=lambda item: item[1])))
    return found


def shares_of_memory(world: World, cases: list[Case]) -> list[float]:
    groups = ParallelGroups(world, context_parallel_size=world.size)
    return [kept_bytes(case, groups) / kept_bytes(case, SINGLE) for case in cases]


def of_two_ranks(world: World, cases: list[Case]) -> tuple[list[Any], list[float]]:
    long = [Case(2, length=256), Case(2, length=256, shape=GROUPED)]
    return compare(world, cases), shares_of_memory(world, long)


def require_agreement(cases: list[Case], limit: float, timeout: float = 120.0) -> None:
    size = cases[0].context * cases[0].model
    for rank in run_ranks(size, compare, cases, timeout=timeout):
        require_small(cases, rank, limit)


def require_small(cases: list[Case], found: list[Any], limit: float) -> None:
    for case, (loss, worst) in zip(cases, found, strict=True):
        assert loss < limit, case
        assert worst[1] < limit, (case, worst)


LEARNED = (("pos_emb", "learned"),)
GROUPED = (("num_kv_heads", 2), ("no_weight_tying", True))
ONE_KV = (("num_kv_heads", 1), ("gpt_j_residual", True), ("rotary_pct", 0.5))


@pytest.mark.ranks
def test_two_ranks_that_share_sequences_agree_with_one_and_keep_half_of_what_it_keeps() -> None:
    cases = [
        Case(2),
        Case(2, apart=True, recompute=True),
        Case(2, shape=LEARNED),
        Case(2, apart=True, shape=LEARNED),
        Case(2, shape=GROUPED),
        Case(2, apart=True, shape=ONE_KV),
    ]
    for found, shares in run_ranks(2, of_two_ranks, cases):
        require_small(cases, found, 1e-5)
        assert shares == pytest.approx([0.5, 0.5], rel=0.02)


@pytest.mark.ranks
def test_with_tensor_and_sequence_parallelism() -> None:
    cases = [
        Case(2, 2, sequence, apart, shape)
        for sequence, apart, shape in (
            (True, True, ()),
            (True, False, LEARNED),
            (True, False, GROUPED),
            (False, True, ONE_KV),
        )
    ]
    require_agreement(cases, 1e-5)


@pytest.mark.slow
@pytest.mark.ranks
def test_a_sequence_of_8192_on_four_ranks_agrees_with_one() -> None:
    shape = (("num_kv_heads", 2), ("hidden_size", 64), ("num_attention_heads", 8))
    cases = [
        Case(4, apart=True, shape=shape, length=8192),
        Case(4, shape=shape, length=8192, recompute=True),
    ]
    require_agreement(cases, 1e-5, timeout=900.0)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 4, 2), (4, 2, 2), (8, 4, 2), (4, 1, 4), (8, 2, 4)]
)
def test_each_rank_gets_its_heads_and_the_keys_and_values_they_look_at(
    heads: int, kv_heads: int, size: int
) -> None:
    width, group = 3, heads // kv_heads
    fused = torch.randn(2, 5, (heads + 2 * kv_heads) * width)
    query, key, value = layout.head_views(fused, heads, kv_heads)
    parts = layout.by_context_rank(fused, heads, kv_heads, size)
    own, own_kv = heads // size, max(1, kv_heads // size)
    for rank, part in enumerate(parts):
        got = layout.head_views(part, own, own_kv)
        mine = range(rank * own, (rank + 1) * own)
        looked_at = sorted({head // group for head in mine})
        torch.testing.assert_close(got[0], query[:, list(mine)], rtol=0, atol=0)
        torch.testing.assert_close(got[1], key[:, looked_at], rtol=0, atol=0)
        torch.testing.assert_close(got[2], value[:, looked_at], rtol=0, atol=0)
