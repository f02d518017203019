"""Protects where inputs of recomputed layers are kept: the same numbers come back, to the last bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from megatron.losses import loss_sum
from megatron.model.kept_activations import KeptInputs
from megatron.mpu import ParallelGroups
from megatron.mpu.collectives import gather_parts, own_part
from megatron.runtime.seeds import seed_dropout
from megatron.runtime.world import World
from tests.support.models import SINGLE, tiny_model
from tests.support.ranks import run_ranks

# 3 sequences of 15 tokens, 32 wide: no two or four ranks share the tokens evenly.
TOKENS = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(1))
EVEN = torch.randint(0, 64, (3, 17), generator=torch.Generator().manual_seed(1))
WHERE = [
    {"partition_activations": partition, "checkpoint_in_cpu": on_host}
    for partition in (False, True)
    for on_host in (False, True)
]
# Types, and how many layers are recomputed as one.
ALONE = [(torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 2)]
TOGETHER = [(torch.float32, 1), (torch.float32, 2)]


def step(
    groups: ParallelGroups, dtype: torch.dtype, tokens: Tensor, **how: Any
) -> tuple[float, list[Tensor]]:
    """The loss and all gradients of a step with dropout."""
    model = tiny_model(
        64, groups=groups, num_layers=3, hidden_dropout=0.2, attention_dropout=0.2, **how
    ).to(dtype)
    seed_dropout(5, step=0, micro_batch=0, data_rank=0)
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    loss = loss_sum(logits, targets, torch.ones_like(targets).bool(), groups)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


def equal_steps(
    groups: ParallelGroups, tokens: Tensor, kinds: list[tuple[torch.dtype, int]]
) -> list[bool]:
    """For each kind and each place: is the step the one that keeps all activations?"""
    kept = {dtype: step(groups, dtype, tokens) for dtype, _ in kinds}
    same = []
    for (dtype, every), where in itertools.product(kinds, WHERE):
        how = {"checkpoint_activations": True, "checkpoint_num_layers": every, **where}
        loss, gradients = kept[dtype]
        again, others = step(groups, dtype, tokens, **how)
        same.append(
            again == loss
            and len(gradients) == len(others)
            and all(map(torch.equal, gradients, others))
        )
    return same


def test_one_rank_gets_back_what_it_kept() -> None:
    assert equal_steps(SINGLE, TOKENS, ALONE) == [True] * len(ALONE) * len(WHERE)
    model = tiny_model(partition_activations=True, checkpoint_in_cpu=True)
    assert model.kept_inputs == KeptInputs(SINGLE, partition=True, on_host=True)


def kept_numbers(groups: ParallelGroups, **where: bool) -> int:
    """Numbers of the input of one layer, whole or in part, that wait for the backward pass."""
    keep = KeptInputs(groups, **where)
    x = torch.rand(3, 5, 8, requires_grad=True)
    sizes = []
    pack, unpack = keep._pack, keep._unpack
    packed = pack(x)
    sizes.append(packed[0].numel())
    assert packed[0].untyped_storage().nbytes() == 4 * sizes[0]  # no view that holds the whole
    assert packed[0].data_ptr() != x.data_ptr()
    # With the ranks' generators alike, all hold the same x.
    assert torch.equal(unpack(packed), x)
    return sizes[0]


def on_two_ranks(world: World) -> dict[str, Any]:
    groups = ParallelGroups(world, model_parallel_size=2)
    sequence = ParallelGroups(world, model_parallel_size=2, sequence_parallel=True)
    torch.manual_seed(3)
    odd = torch.arange(7.0).view(7, 1)
    return {
        "same": equal_steps(groups, TOKENS, TOGETHER),
        "same in parts": equal_steps(sequence, EVEN, TOGETHER),
        "whole": kept_numbers(groups, on_host=True),
        "split": kept_numbers(groups, partition=True),
        "both": kept_numbers(groups, partition=True, on_host=True),
        "already a part": kept_numbers(sequence, partition=True, on_host=True),
        "part": own_part(odd, groups).tolist(),
        "joined": gather_parts(own_part(odd, groups), odd.shape, groups).tolist(),
    }


@pytest.mark.ranks
def test_two_ranks_keep_a_half_each() -> None:
    found = run_ranks(2, on_two_ranks)
    assert [rank.pop("part") for rank in found] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 0.0]]
    same = [True] * len(TOGETHER) * len(WHERE)
    for rank in found:
        assert rank.pop("same") == same
        assert rank.pop("same in parts") == same
        assert rank == {
            "whole": 120,
            "split": 60,
            "both": 60,
            "already a part": 120,
            "joined": [[float(number)] for number in range(7)],
        }


@pytest.mark.parametrize("on_host", [False, True])
def test_nothing_but_the_input_is_kept(on_host: bool) -> None:
    """And it is kept by these hooks: whoever listens outside of them sees nothing of the layers."""
    keep = KeptInputs(SINGLE, on_host=on_host)
    x, weight = torch.rand(2, 3, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
    seen: list[tuple[int, ...]] = []

    def listen(tensor: Tensor) -> Tensor:
        seen.append(tuple(tensor.shape))
        return tensor

    with saved_tensors_hooks(listen, lambda tensor: tensor):
        out = keep.recomputed(lambda y: (y @ weight).tanh() @ weight, x)
    out.sum().backward()
    assert seen == ([] if on_host else [(2, 3, 4)])
    assert x.grad is not None
    assert weight.grad is not None
