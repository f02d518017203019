"""Layers and the loss on real model-parallel ranks equal those of one process.

Two worlds, of two and of four ranks, run all cases: a world costs more than its work.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron.errors import ConfigError
from megatron.losses import loss_sum
from megatron.model import Segments, positions_within
from megatron.mpu import (
    ColumnParallelLinear,
    ParallelGroups,
    RowParallelLinear,
    vocab_parallel_cross_entropy,
    vocab_parallel_log_probs,
)
from megatron.mpu.collectives import gather_from_model_parallel
from megatron.runtime.world import World
from tests.support.models import SINGLE, off_by, tiny_args, tiny_model
from tests.support.ranks import run_ranks

TOKENS = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(1))
MASK = torch.rand(2, 16, generator=torch.Generator().manual_seed(2)) < 0.8
# Documents that begin at these places, with positions of their own.
STARTS = torch.tensor([[0, 5, 11], [0, 7, 16]])
DOCUMENTS = {
    "position_ids": positions_within(STARTS, 16),
    "segments": Segments.from_starts(STARTS, 16, torch.device("cpu")),
}
LOUD = {"init_method": "small_init", "output_layer_init_method": "small_init"}

VARIANTS: dict[str, dict[str, Any]] = {
    "neox": {**LOUD, "no_weight_tying": True, "gpt_j_residual": True, "rotary_pct": 0.5},
    "gpt2": {**LOUD, "pos_emb": "learned"},
    "llama": {
        **LOUD,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_kv_heads": 4,
        "intermediate_size": 192,
        "norm": "rmsnorm",
        "activation": "swiglu",
        "use_bias_in_attn_linear": False,
        "no_weight_tying": True,
    },
    "one key/value head": {**LOUD, "num_kv_heads": 1, "no_weight_tying": True},
    "two key/value heads": {**LOUD, "num_kv_heads": 2, "no_weight_tying": True},
    "a norm of each head": {
        **LOUD,
        "num_kv_heads": 1,
        "use_bias_in_attn_linear": False,
        "qk_norm": "head",
    },
    "a norm of all heads": {**LOUD, "qk_norm": "neox"},
}
INPUTS = {"gpt2": DOCUMENTS, "two key/value heads": DOCUMENTS}


def step(groups: ParallelGroups, variant: str) -> tuple[float, Tensor, dict[str, Tensor]]:
    """Loss, whole logits, and this rank's gradients by name."""
    model = tiny_model(64, groups=groups, **VARIANTS[variant])
    logits = model(TOKENS[:, :-1], **INPUTS.get(variant, {}))
    loss = loss_sum(logits, TOKENS[:, 1:], MASK, groups)
    loss.backward()
    with torch.no_grad():
        whole = gather_from_model_parallel(logits, groups)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), whole.detach(), gradients


def marks(groups: ParallelGroups, variant: str) -> set[str]:
    model = tiny_model(64, groups=groups, **VARIANTS[variant])
    return {n for n, p in model.named_parameters() if getattr(p, "model_parallel", False)}


def compare_with_one_process(world: World) -> dict[str, Any]:
    """Largest deviation of each variant's loss (relative), logits and gradients (absolute)."""
    report: dict[str, Any] = {}
    one_process = {variant: step(SINGLE, variant) for variant in VARIANTS}
    for variant, changes in VARIANTS.items():
        for sequence_parallel in (False, True):
            groups = ParallelGroups(
                world,
                model_parallel_size=world.size,
                sequence_parallel=sequence_parallel,
                num_kv_heads=tiny_args(**changes).kv_heads,
            )
            loss, logits, gradients = step(groups, variant)
            one_loss, one_logits, one_gradients = one_process[variant]
            report[f"{variant}, sequence_parallel {sequence_parallel}"] = {
                "loss": abs(loss - one_loss) / one_loss,
                "logits": (logits - one_logits).abs().max().item() / one_logits.abs().max().item(),
                "gradients": off_by(gradients, one_gradients, groups, tiny_args(**changes)),
                "marks": marks(groups, variant),
            }
    groups = ParallelGroups(world, model_parallel_size=world.size)
    report["layers"] = layers_alone(groups)
    report["loss"] = loss_alone(groups)
    try:
        tiny_model(64, groups=groups, hidden_size=24, num_attention_heads=3)
    except ConfigError as error:
        report["refused"] = str(error)
    return report


def layers_alone(groups: ParallelGroups) -> float:
    """A column-parallel and a row-parallel layer around a bias, against the two whole matrices."""
    rank, size = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    random = torch.Generator().manual_seed(3)
    first, second = (torch.randn(8, 8, generator=random) for _ in range(2))
    bias, x = torch.randn(8, generator=random), torch.randn(5, 8, generator=random)
    column = ColumnParallelLinear(8, 8, groups=groups, bias=False)
    gathered = ColumnParallelLinear(8, 8, groups=groups, bias=False, gather_output=True)
    row = RowParallelLinear(8, 8, groups=groups)
    with torch.no_grad():
        column.weight.copy_(first.chunk(size)[rank])
        gathered.weight.copy_(first.chunk(size)[rank])
        row.weight.copy_(second.chunk(size, dim=1)[rank])
        assert row.bias is not None
        row.bias.copy_(bias)
    mine, whole = x.clone().requires_grad_(), x.clone().requires_grad_()
    got = row(column(mine)) + gathered(mine)
    expected = whole @ first.t() @ second.t() + bias + whole @ first.t()
    # A gradient that differs by output column: the gathered part must get its own columns.
    slope = torch.arange(8.0)
    (got * slope).sum().backward()
    (expected * slope).sum().backward()
    assert mine.grad is not None
    assert whole.grad is not None
    return max((got - expected).abs().max().item(), (mine.grad - whole.grad).abs().max().item())


def loss_alone(groups: ParallelGroups) -> float:
    """Per-token losses of logits far beyond what exp can hold, with z-loss, and their gradients."""
    rank, size = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    logits = 300 * torch.randn(6, 16, generator=torch.Generator().manual_seed(4))
    labels = torch.tensor([0, 3, 7, 8, 12, 15])
    mine = logits.chunk(size, dim=-1)[rank].clone().requires_grad_()
    whole = logits.clone().requires_grad_()
    got = vocab_parallel_cross_entropy(mine, labels, groups, z_loss=1e-4)
    expected = torch.nn.functional.cross_entropy(whole, labels, reduction="none")
    log_probs = vocab_parallel_log_probs(mine, labels, groups)
    torch.testing.assert_close(log_probs, -expected, rtol=1e-6, atol=1e-5)
    expected = expected + 1e-4 * whole.double().logsumexp(-1).float().square()
    weights = torch.arange(1.0, 7.0)
    (got * weights).sum().backward()
    (expected * weights).sum().backward()
    assert mine.grad is not None
    assert whole.grad is not None
    same = whole.grad.chunk(size, dim=-1)[rank]
    relative = ((got - expected).abs() / expected.clamp_min(1.0)).max().item()
    return max(relative, (mine.grad - same).abs().max().item())


SPLIT_IN_A_LAYER = {
    "attention.dense.weight",
    "mlp.linear1.weight",
    "mlp.linear1.bias",
    "mlp.linear2.weight",
}


def marked(*names: str) -> set[str]:
    ends = {"sequential.0.word_embeddings.weight", "sequential.6.final_linear.weight"}
    return ends | {f"sequential.{n}.{name}" for n in (2, 3) for name in SPLIT_IN_A_LAYER | {*names}}


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 4])
def test_model_parallel_ranks_compute_what_one_process_does(size: int) -> None:
    for rank, report in enumerate(run_ranks(size, compare_with_one_process)):
        layers, loss, refused = (report.pop(name) for name in ("layers", "loss", "refused"))
        for case, found in report.items():
            assert found["loss"] < 1e-6, case
            assert found["logits"] < 1e-5, case
            worst = max(found["gradients"].items(), key=lambda item: item[1])
            assert worst[1] < 1e-4, (case, worst)
        assert layers < 1e-4
        assert loss < 1e-5
        assert f"num_attention_heads is 3, which {size}" in refused
        # DeepSpeed counts parameters without the mark once per group in the gradient norm.
        fused = ("attention.query_key_value.weight", "attention.query_key_value.bias")
        assert report["neox, sequence_parallel True"]["marks"] == marked(*fused)
        # Of the copies of a key/value head, the first counts.
        prefix = "attention.query_key_value"
        queries = [f"{prefix}.query_weight", f"{prefix}.query_bias"]
        shared = [f"{prefix}.key_value_weight", f"{prefix}.key_value_bias"]
        first = rank == 0
        expected = marked(*queries, *shared) if first else marked(*queries)
        assert report["one key/value head, sequence_parallel False"]["marks"] == expected
        if size == 4:
            expected = marked(*queries, *shared) if rank in (0, 2) else marked(*queries)
            assert report["two key/value heads, sequence_parallel False"]["marks"] == expected
