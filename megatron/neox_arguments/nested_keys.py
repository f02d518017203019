"""What may stand inside the groups that DeepSpeed trains by, with types.

The names are DeepSpeed 0.19's and a few older ones that GPT-NeoX's files write (`NOT_DEEPSPEEDS`). A name
that is not here is refused as a typing mistake: DeepSpeed itself ignores some of those in silence.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from megatron.neox_arguments.nested_services import SERVICES
from megatron.neox_arguments.typed import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
)

_Beta = Annotated[float, Range(low=0, high=1, open_high=True)]

_Dtype = Literal["fp32", "fp16", "bf16"]
_OFFLOAD: dict[str, Any] = {
    "device": Literal["none", "cpu", "nvme"],
    "nvme_path": str | None,
    "buffer_count": NonNegativeInt,
    "pin_memory": bool,
}
_ADAM: dict[str, Any] = {
    "lr": NonNegativeFloat,
    "betas": tuple[_Beta, ...],
    "eps": PositiveFloat,
    "weight_decay": NonNegativeFloat,
    "torch_adam": bool,
    "adam_w_mode": bool,
    "bias_correction": bool,
    "amsgrad": bool,
    "foreach": bool | None,
    "fused": bool | None,
    "fp32_optimizer_states": bool,
}
_SGD: dict[str, Any] = {
    "lr": NonNegativeFloat,
    "momentum": NonNegativeFloat,
    "dampening": NonNegativeFloat,
    "nesterov": bool,
    "weight_decay": NonNegativeFloat,
}
OPTIMIZER_PARAMS: dict[str, dict[str, Any]] = {"adam": _ADAM, "adamw": _ADAM, "sgd": _SGD}

# 2^127 is the largest that a float32, in which the scaled loss is, can hold.
_PowerOfTwo = Annotated[int, Range(low=0, high=127)]

GROUPS: dict[str, dict[str, Any]] = {
    "optimizer": {"type": str, "params": dict[str, Any] | None, "legacy_fusion": bool},
    "fp16": {
        "enabled": bool,
        "fp16": bool,
        "type": Literal["fp16", "bfloat16", "bf16"],
        "auto_cast": bool,
        "loss_scale": NonNegativeFloat,
        "initial_scale_power": _PowerOfTwo,
        "loss_scale_window": PositiveInt,
        "hysteresis": PositiveInt,
        "consecutive_hysteresis": bool,
        "min_loss_scale": PositiveFloat,
        "fp16_master_weights_and_grads": bool,
    },
    "bf16": {
        "enabled": bool,
        "bf16": bool,
        "immediate_grad_update": bool,
        "check_grad_overflow": bool,
        "bf16_master_weights_and_grads": bool,
        "bf16_optimizer_states": bool,
        # Loss scaling as copied from fp16 groups.
        "loss_scale": NonNegativeFloat,
        "initial_scale_power": NonNegativeInt,
        "loss_scale_window": PositiveInt,
        "hysteresis": PositiveInt,
        "min_loss_scale": NonNegativeFloat,
    },
    "zero_optimization": {
        "stage": NonNegativeInt,
        **dict.fromkeys(
            (
                "contiguous_gradients",
                "reduce_scatter",
                "use_multi_rank_bucket_allreduce",
                "allgather_partitions",
                "compute_grad_norm",
                "load_from_fp32_weights",
                "elastic_checkpoint",
                "cpu_offload",
                "cpu_offload_param",
                "cpu_offload_use_pin_memory",
                "ignore_unused_parameters",
                "legacy_stage1",
                "round_robin_gradients",
                "parameter_alignment",
                "zero_quantized_weights",
                "zero_quantized_nontrainable_weights",
                "zero_quantized_gradients",
                "memory_efficient_linear",
                "pipeline_loading_checkpoint",
                "override_module_apply",
                "log_trace_cache_warnings",
                "enable_sanity_checks",
                "save_muon_momentum_buffer_in_memory",
                "stage3_gather_16bit_weights_on_model_save",
                "stage3_gather_fp16_weights_on_model_save",
                "stage3_use_all_reduce_for_fetch_params",
                "stage3_allgather_sequential",
            ),
            bool,
        ),
        "overlap_comm": bool | None,
        **dict.fromkeys(
            (
                "reduce_bucket_size",
                "allgather_bucket_size",
                "sub_group_size",
                "stage3_prefetch_bucket_size",
                "stage3_param_persistence_threshold",
                "stage3_model_persistence_threshold",
                "stage3_max_live_parameters",
                "stage3_max_reuse_distance",
                "stage3_module_granularity_threshold",
                "zero_hpz_partition_size",
            ),
            NonNegativeInt,
        ),
        "offload_param": {
            **_OFFLOAD,
            "buffer_size": NonNegativeInt,
            "max_in_cpu": NonNegativeInt,
        },
        "offload_optimizer": {
            **_OFFLOAD,
            "pipeline_read": bool,
            "pipeline_write": bool,
            "fast_init": bool,
            "ratio": Share,
            "super_offload": bool,
            "cpuadam_cores_perc": Share,
        },
        "zenflow": {
            "topk_ratio": Share,
            "select_strategy": str,
            "select_interval": int | str,
            "update_interval": int | str,
            "overlap_step": bool,
            "offload": bool,
            "auto_ratio": Share,
            "full_warm_up_rounds": NonNegativeInt,
            "pt_reserved_cores_perc": Share,
            "steps_per_epoch": PositiveInt | None,
        },
        "leaf_module": dict.fromkeys(("classes", "names", "name_suffixes"), tuple[str, ...]),
    },
    "checkpoint": {
        "tag_validation": str,
        "load_universal": bool,
        "use_node_local_storage": bool,
        "parallel_write": {"pipeline_stage": bool},
        "checkpoint_serialization": bool,
        "writer": dict[str, Any],
    },
    "data_types": {
        **dict.fromkeys(("grad_accum_dtype", "param_dtype", "buffer_dtype"), _Dtype | None),
        "keep_in_fp32_modules": str | tuple[str, ...],
    },
    "activation_checkpointing": {
        "partition_activations": bool,
        "number_checkpoints": NonNegativeInt | None,
        "contiguous_memory_optimization": bool,
        "synchronize_checkpoint_boundary": bool,
        "cpu_checkpointing": bool,
        "profile": bool,
    },
    # Not DeepSpeed's.
    "soft_prompt_tuning": {
        "enabled": bool,
        "num_tokens": PositiveInt,
        "init_string": str,
        "init_range": PositiveFloat,
    },
    **SERVICES,
}

# Accepted above because public files write them; DeepSpeed would stop at them, and they say nothing that
# another key does not say.
NOT_DEEPSPEEDS: dict[str, frozenset[str]] = {
    "fp16": frozenset({"fp16", "type"}),
    "bf16": frozenset(
        {
            "bf16",
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "min_loss_scale",
        }
    ),
}
