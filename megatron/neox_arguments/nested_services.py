"""What may stand inside DeepSpeed's groups of measurements and services, and in `deepspeed_extra_args`.

The names are DeepSpeed 0.19's, which ignores other names in silence; here they are refused as typing
mistakes. A dict in the place of a type is the table of a group inside the group.
"""

from __future__ import annotations

from typing import Any, Literal

from megatron.neox_arguments.typed import NonNegativeFloat, NonNegativeInt, PositiveInt

SERVICES: dict[str, dict[str, Any]] = {
    "tensorboard": {"enabled": bool, "output_path": str, "job_name": str},
    "wandb": {"enabled": bool, "group": str | None, "team": str | None, "project": str},
    "csv_monitor": {"enabled": bool, "output_path": str, "job_name": str},
    "flops_profiler": {
        "enabled": bool,
        "recompute_fwd_factor": NonNegativeFloat,
        "profile_step": NonNegativeInt,
        "module_depth": int,
        "top_modules": PositiveInt,
        "detailed": bool,
        "output_file": str | None,
    },
    "comms_logger": {
        "enabled": bool,
        "verbose": bool,
        "prof_all": bool,
        "debug": bool,
        "prof_ops": tuple[str, ...],
    },
    "torch_autocast": {
        "enabled": bool,
        "dtype": str,
        "lower_precision_safe_modules": tuple[str, ...],
    },
    "aio": {
        "block_size": PositiveInt,
        "queue_depth": PositiveInt,
        "intra_op_parallelism": PositiveInt,
        "single_submit": bool,
        "overlap_events": bool,
        "use_gds": bool,
    },
    "data_efficiency": {
        "enabled": bool,
        "seed": NonNegativeInt,
        "data_sampling": dict[str, Any],
        "data_routing": dict[str, Any],
    },
    "deepspeed_extra_args": {
        "comet": {
            "enabled": bool,
            "samples_log_interval": PositiveInt,
            "project": str | None,
            "workspace": str | None,
            "experiment_name": str | None,
            "experiment_key": str | None,
            "online": bool | None,
            "mode": str | None,
        },
        "dataloader_drop_last": bool,
        "disable_allgather": bool,
        "disable_python_gc": bool,
        "gradient_allreduce_op": Literal["mean", "sum"],
        "log_level": str,
        "timers": {"throughput": {"enabled": bool, "synchronized": bool}},
        "hybrid_engine": dict[str, Any],
        "pipeline": {"pipe_partitioned": bool, "grad_partitioned": bool},
    },
}
# Keys of DeepSpeed that would do what a layout of this project's does, or change the model.
NOT_HERE = frozenset(
    {
        "compile",
        "expert_parallel",
        "managed_gradient_accumulation",
        "sequence_parallel_size",
        "tensor_parallel",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "weight_quantization",
    }
)
# Keys at which DeepSpeed stops even where they ask for nothing.
REMOVED_FROM_DEEPSPEED = frozenset(
    {"nebula", "quantize_training", "eigenvalue", "graph_harvesting", "progressive_layer_drop"}
)
REMOVED_FROM_ZERO = frozenset(
    {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}
)
