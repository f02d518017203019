"""What is written reaches DeepSpeed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.nested_keys import GROUPS, NOT_DEEPSPEEDS
from tests.support.small_config import small


def deepspeed(world_size: int = 1, **changes: Any) -> dict[str, Any]:
    config = NeoXArgs.from_dict(small(**changes)).deepspeed_config(world_size)
    assert json.loads(json.dumps(config)) == config  # plain values only
    return config


# Case 10.


@pytest.mark.parametrize(("written", "found"), [(1.0, 1.0), (0.0, 0.0), (..., 1.0)])
def test_gradient_clipping_is_always_explicit(written: Any, found: float) -> None:
    assert deepspeed(gradient_clipping=written)["gradient_clipping"] == found


# Each at GPT-NeoX's default or another plausible value: equal to a default or not, it must arrive.
WRITTEN: dict[str, list[Any]] = {
    "prescale_gradients": [False, True],
    "gradient_predivide_factor": [1.0, 2.0],
    "steps_per_print": [10, 3],
    "wall_clock_breakdown": [False, True],
    "dump_state": [False, True],
    "communication_data_type": ["fp32"],
    "seq_parallel_communication_data_type": ["fp32"],
    "fp16": [{"enabled": False, "loss_scale": 0, "hysteresis": 2}],
    "bf16": [{"enabled": False}],
    "torch_autocast": [{"enabled": False}],
    "data_types": [{"grad_accum_dtype": "fp32"}],
    "zero_optimization": [
        {"stage": 0},
        {
            "stage": 1,
            "allgather_bucket_size": 500000000,
            "overlap_comm": True,
            "contiguous_gradients": True,
        },
    ],
    "zero_allow_untested_optimizer": [True],
    "zero_force_ds_cpu_optimizer": [False],
    "checkpoint": [{"tag_validation": "Warn"}],
    "activation_checkpointing": [{"partition_activations": False}],
    "memory_breakdown": [False],
    "flops_profiler": [{"enabled": False, "profile_step": 1}],
    "comms_logger": [{"enabled": True, "verbose": False}],
    "tensorboard": [{"enabled": False}],
    "wandb": [{"enabled": False}],
    "csv_monitor": [{"enabled": True, "output_path": "x"}],
    "aio": [{"block_size": 1048576}],
    "data_efficiency": [{"enabled": False}],
    "autotuning": [{"enabled": False}],
    "train_batch_size": [2],
    "train_micro_batch_size_per_gpu": [2],
    "gradient_accumulation_steps": [1],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRITTEN.items() for value in values]
)
def test_a_written_key_arrives_unchanged(key: str, value: Any) -> None:
    assert deepspeed(**{key: value})[key] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zero_stage", 1),
        ("zero_reduce_scatter", True),
        ("zero_reduce_scatter", False),
        ("zero_contiguous_gradients", True),
        ("zero_reduce_bucket_size", 500000000),
        ("zero_allgather_bucket_size", 500000000),
    ],
)
def test_a_short_name_arrives_under_its_long_one(key: str, value: Any) -> None:
    group = deepspeed(zero_optimization=..., **{key: value})["zero_optimization"]
    assert group[key.removeprefix("zero_")] == value


def test_every_key_of_the_deepspeed_section_is_tested_above() -> None:
    from megatron.neox_arguments.registry import FIELDS

    keys = {key for key, spec in FIELDS.items() if spec.section == "ds"}
    assert keys - {"scheduler"} <= set(WRITTEN)


def test_deepspeed_counts_a_sample_once_for_each_rank_that_has_a_part_of_it() -> None:
    shared = deepspeed(4, context_parallel_size=2)
    # Two copies of the model, of two ranks each, read 2 samples each: 4 of ours, 8 of DeepSpeed's.
    assert (shared["train_batch_size"], shared["train_micro_batch_size_per_gpu"]) == (8, 2)
    assert "context_parallel_size" not in shared


def test_the_smallest_file_leaves_nothing_to_deepspeeds_defaults() -> None:
    assert deepspeed(2, optimizer=..., zero_optimization=..., min_lr=0.0) == {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "optimizer": {
            "type": "Adam",
            "params": {
                "lr": 0.001,
                "weight_decay": 0.1,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "torch_adam": True,
            },
        },
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 0},
        "steps_per_print": 10,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "dump_state": False,
    }


def test_deepspeeds_own_throughput_is_measured_for_who_asks_for_it() -> None:
    timers = {"throughput": {"enabled": True, "synchronized": False}}
    assert deepspeed(deepspeed_extra_args={"timers": timers})["timers"] == timers


def test_the_optimizer_as_written() -> None:
    written = {
        "type": "AdamW",
        "params": {"lr": 0.002, "fused": False, "weight_decay": 0.05, "torch_adam": False},
    }
    config = deepspeed(optimizer=written)
    assert config["optimizer"]["type"] == "AdamW"
    assert config["optimizer"]["params"] == {
        **written["params"],
        "betas": [0.9, 0.999],
        "eps": 1e-8,
    }  # type: ignore[dict-item]


def test_weight_decay_has_one_source() -> None:
    args = NeoXArgs.from_dict(small(optimizer={"type": "Adam", "params": {"weight_decay": 0.05}}))
    assert args.optim.weight_decay == 0.05
    assert deepspeed(weight_decay=0.2)["optimizer"]["params"]["weight_decay"] == 0.2


def test_sgd() -> None:
    optimizer = {"type": "sgd", "params": {"lr": 0.1, "momentum": 0.9}}
    config = deepspeed(optimizer=optimizer, zero_optimization={"stage": 1})
    assert config["optimizer"] == {
        "type": "SGD",
        "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    }
    assert config["zero_allow_untested_optimizer"] is True


def test_half_precision_switches_bf16_on_and_stage_0_to_1() -> None:
    config = deepspeed(precision="bfloat16", zero_optimization={"stage": 0, "reduce_scatter": True})
    assert config["bf16"] == {"enabled": True}
    assert config["zero_optimization"] == {"stage": 1, "reduce_scatter": True}


def test_loss_scaling_in_flat_and_in_nested_words() -> None:
    flat = {"loss_scale_window": 500.0, "min_scale": 2, "hysteresis": 3, "dynamic_loss_scale": True}
    config = deepspeed(precision="fp16", **flat)
    assert config["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "loss_scale_window": 500,
        "min_loss_scale": 2,
        "hysteresis": 3,
    }
    assert config["zero_optimization"] == {"stage": 1}
    assert "bf16" not in config
    nested = {"fp16": True, "enabled": True, "initial_scale_power": 12, "loss_scale": 64.0}
    config = deepspeed(precision=..., fp16=nested)
    assert config["fp16"] == {"enabled": True, "initial_scale_power": 12, "loss_scale": 64.0}


def test_an_older_files_way_to_ask_for_bfloat16() -> None:
    config = deepspeed(precision=..., fp16={"type": "bfloat16", "enabled": True, "loss_scale": 0})
    assert config["fp16"] == {"enabled": False, "loss_scale": 0}
    assert config["bf16"] == {"enabled": True}


def test_deepspeed_takes_what_public_files_write_into_the_precision_groups() -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    loss_scaling = {
        "loss_scale": 0,
        "initial_scale_power": 12,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    config = deepspeed(
        precision="bfloat16",
        fp16={"fp16": True, "enabled": False, **loss_scaling},
        bf16={"bf16": True, "enabled": True, "check_grad_overflow": True, **loss_scaling},
    )
    assert config["fp16"] == {"enabled": False, **loss_scaling}
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": True}
    taken = DeepSpeedConfig(config)
    assert taken.bfloat16_config.enabled
    assert not taken.float16_config.enabled


def test_keys_in_other_words() -> None:
    config = deepspeed(
        fp32_allreduce=True,
        use_node_local_storage=True,
        zero_reduce_bucket_size=1000,
        deepspeed_extra_args={"dataloader_drop_last": False},
    )
    assert config["communication_data_type"] == "fp32"
    assert config["checkpoint"] == {"use_node_local_storage": True}
    assert config["zero_optimization"]["reduce_bucket_size"] == 1000
    assert config["dataloader_drop_last"] is False
    args = NeoXArgs.from_dict(small(checkpoint={"use_node_local_storage": True}))
    assert args.checkpointing.use_node_local_storage is True


def test_the_dict_is_the_callers_own() -> None:
    args = NeoXArgs.from_dict(small())
    args.deepspeed_config(1)["zero_optimization"]["stage"] = 7
    assert args.deepspeed_config(1)["zero_optimization"]["stage"] == 0


# The names inside groups are DeepSpeed's.


def _names_of(module: str, config: str) -> set[str]:
    fields = getattr(importlib.import_module(module), config).model_fields
    return {field.alias or name for name, field in fields.items()}


@pytest.mark.parametrize(
    ("group", "module", "config"),
    [
        ("zero_optimization", "deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
        ("tensorboard", "deepspeed.monitor.config", "TensorBoardConfig"),
        ("wandb", "deepspeed.monitor.config", "WandbConfig"),
        ("csv_monitor", "deepspeed.monitor.config", "CSVConfig"),
        ("comms_logger", "deepspeed.comm.config", "CommsLoggerConfig"),
        ("fp16", "deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
        ("bf16", "deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    ],
)
def test_the_names_of_a_group_are_deepspeeds(group: str, module: str, config: str) -> None:
    theirs = _names_of(module, config)
    ours = set(GROUPS[group]) - NOT_DEEPSPEEDS.get(group, frozenset())
    older = {"stage3_gather_fp16_weights_on_model_save"}
    assert ours == theirs | (older if group == "zero_optimization" else set())


@pytest.mark.parametrize(
    ("group", "module", "config"),
    [
        ("offload_param", "offload_config", "DeepSpeedZeroOffloadParamConfig"),
        ("offload_optimizer", "offload_config", "DeepSpeedZeroOffloadOptimizerConfig"),
        ("leaf_module", "leaf_module_config", "DeepSpeedZeroLeafModuleConfig"),
    ],
)
def test_the_names_of_an_inner_group_are_deepspeeds(group: str, module: str, config: str) -> None:
    theirs = _names_of(f"deepspeed.runtime.zero.{module}", config)
    assert set(GROUPS["zero_optimization"][group]) == theirs


def test_deepspeed_reads_what_may_stand_in_the_extra_args() -> None:
    readers = ("runtime.config", "runtime.constants", "monitor.config", "utils.config")
    modules = [importlib.import_module(f"deepspeed.{name}") for name in readers]
    source = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules)
    for key in GROUPS["deepspeed_extra_args"]:
        assert f'"{key}"' in source or f"'{key}'" in source, key


def test_null_in_a_group_is_not_given() -> None:
    """Where a short name says the same as the nested key."""
    args = NeoXArgs.from_dict(
        small(
            precision="fp16",
            optimizer={"type": "Adam", "params": {"lr": None, "weight_decay": None}},
            fp16={"loss_scale": None, "hysteresis": None},
            zero_optimization={"stage": None, "reduce_scatter": None},
        )
    )
    config = args.deepspeed_config(1)
    params = config["optimizer"]["params"]
    assert (params["lr"], params["weight_decay"]) == (0.001, 0.1)
    assert config["fp16"] == {"enabled": True}
    assert config["zero_optimization"] == {"stage": 1}
    assert NeoXArgs.from_dict(args.flat()).hash() == args.hash()
