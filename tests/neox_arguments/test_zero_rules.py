"""Protects what is said about ZeRO and offloading: each refusal names the key, the reason, the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from tests.support.small_config import small

CPU = {"device": "cpu"}


def zero(stage: int, **options: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **options}}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (zero(4), "zero_optimization.stage: found 4; stages are 0, 1, 2 and 3"),
        (
            zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"}),
            "zero_optimization.offload_optimizer.device: nvme needs DeepSpeed's asynchronous file access",
        ),
        (
            zero(0, offload_optimizer=CPU),
            "zero_optimization.offload_optimizer: works with ZeRO stages 1, 2 and 3, the stage is 0",
        ),
        (
            zero(0, cpu_offload=True),
            "zero_optimization.offload_optimizer: works with ZeRO stages 1, 2 and 3, the stage is 0",
        ),
        (
            zero(2, offload_param=CPU),
            "zero_optimization.offload_param: works with ZeRO stage 3, the stage is 2",
        ),
        (
            zero(1, offload_optimizer=CPU) | {"zero_force_ds_cpu_optimizer": True},
            "zero_force_ds_cpu_optimizer: is true, but PyTorch's optimizer runs",
        ),
        (
            zero(3, offload_optimizer=CPU | {"ratio": 0.5}),
            "zero_optimization.offload_optimizer.ratio: a part of the optimizer",
        ),
        (
            zero(3, offload_optimizer=CPU | {"ratio": 0.0}),
            "zero_optimization.offload_optimizer.ratio: a part of the optimizer",
        ),
        (
            zero(3, offload_optimizer=CPU | {"super_offload": True}),
            "zero_optimization.offload_optimizer.super_offload: runs with DeepSpeed's own Adam only",
        ),
        (
            zero(3, zero_quantized_gradients=True),
            "zero_optimization.zero_quantized_gradients: needs code that DeepSpeed compiles",
        ),
        (
            zero(3, zero_hpz_partition_size=2),
            "zero_optimization.zero_hpz_partition_size: a second partition",
        ),
        (
            zero(3, stage3_module_granularity_threshold=10),
            "zero_optimization.stage3_module_granularity_threshold: DeepSpeed fails",
        ),
        (
            zero(3, elastic_checkpoint=True),
            "zero_optimization.elastic_checkpoint: DeepSpeed no longer",
        ),
        (
            zero(1, legacy_stage1=True),
            "zero_optimization.legacy_stage1: DeepSpeed no longer has it",
        ),
        (zero(2, zenflow={}), "zero_optimization.zenflow: is not supported"),
        (
            zero(1, compute_grad_norm=False),
            "zero_optimization.compute_grad_norm: each step reports",
        ),
        (
            zero(3) | {"prescale_gradients": True},
            "prescale_gradients: cannot be had in ZeRO stage 3, which scatters gradients",
        ),
        (
            zero(2) | {"prescale_gradients": True},
            "prescale_gradients: cannot be had in ZeRO stage 2, which scatters gradients",
        ),
        (
            zero(3) | {"gradient_predivide_factor": 2.0},
            "gradient_predivide_factor: cannot be had in ZeRO stage 3",
        ),
    ],
)
def test_what_does_not_work_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NeoXArgs.from_dict(small(**changes))
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("options", "offloaded"),
    [
        ({}, ()),
        ({"offload_optimizer": {"device": "none"}, "offload_param": {}}, ()),
        ({"offload_optimizer": CPU}, ("optimizer",)),
        ({"offload_param": CPU | {"pin_memory": False}}, ("weights",)),
        ({"offload_optimizer": CPU, "offload_param": CPU}, ("optimizer", "weights")),
        # As older files have it.
        ({"cpu_offload": True, "cpu_offload_param": True}, ("optimizer", "weights")),
        ({"cpu_offload": False}, ()),
    ],
)
def test_what_is_offloaded(options: dict[str, Any], offloaded: tuple[str, ...]) -> None:
    args = NeoXArgs.from_dict(small(**zero(3, **options)))
    assert args.optim.offloaded == offloaded
    assert args.deepspeed_config(1)["zero_optimization"] == {"stage": 3, **options}


def test_the_keys_of_stage_3_arrive_as_they_are_written() -> None:
    written = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
        "sub_group_size": 1_000_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 100_000,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_gather_16bit_weights_on_model_save": False,
    }
    args = NeoXArgs.from_dict(small(**zero(3, **written)))
    assert args.deepspeed_config(1)["zero_optimization"] == {"stage": 3, **written}


def test_half_precision_offloads_in_the_stage_that_runs() -> None:
    """Stage 0 runs as stage 1 in bf16, where the optimizer can be offloaded."""
    args = NeoXArgs.from_dict(small(**zero(0, offload_optimizer=CPU), precision="bfloat16"))
    assert args.optim.zero_stage == 1
    assert args.optim.offloaded == ("optimizer",)
