"""DeepSpeed's own sections: checked where this project knows better, and handed on as written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from megatron.neox_arguments.typed import PositiveFloat


@dataclass(frozen=True)
class DeepSpeedArgs:
    """Keys of DeepSpeed's configuration that no other section holds. Whatever is written here reaches
    DeepSpeed with the value that is written."""

    deepspeed: bool = True
    """Always true: training runs through DeepSpeed's engine."""

    scheduler: dict[str, Any] | None = None
    """DeepSpeed's learning-rate schedule. Refused: `lr_decay_style`, `warmup` and `min_lr` set it."""

    fp32_allreduce: bool = False
    """true averages gradients in fp32: `communication_data_type: fp32` in DeepSpeed's words."""

    prescale_gradients: bool = False
    """Scale gradients before they are summed over ranks instead of after."""

    gradient_predivide_factor: PositiveFloat = 1.0
    """With `prescale_gradients`: divide gradients by this before they are summed."""

    fp16: dict[str, Any] | None = None
    """DeepSpeed's half precision with loss scaling. `enabled: true` is refused for now."""

    bf16: dict[str, Any] | None = None
    """DeepSpeed's bfloat16; `enabled` must agree with `precision`."""

    torch_autocast: dict[str, Any] | None = None
    """Automatic casting. `enabled: true` is refused: use `precision: bfloat16`."""

    communication_data_type: Literal["fp32", "fp16", "bf16", "bfp16"] | None = None
    """Type in which gradients travel. Default: that of the gradients."""

    seq_parallel_communication_data_type: Literal["fp32", "fp16", "bf16", "bfp16"] | None = None
    """Type in which sequence-parallel gradients travel."""

    data_types: dict[str, Any] | None = None
    """DeepSpeed's `grad_accum_dtype` and its like."""

    zero_allow_untested_optimizer: bool | None = None
    """Let ZeRO run with an optimizer that DeepSpeed has no test for. Set by itself for `sgd`."""

    zero_force_ds_cpu_optimizer: bool | None = None
    """Insist on DeepSpeed's own Adam when the optimizer is offloaded."""

    checkpoint: dict[str, Any] | None = None
    """DeepSpeed's checkpoint options; `use_node_local_storage` sets the key of that name."""

    activation_checkpointing: dict[str, Any] | None = None
    """Options of DeepSpeed's activation checkpointing. Ignored, and said so: activations are recomputed by
    PyTorch, see `checkpoint_activations`."""

    dump_state: bool = False
    """Print DeepSpeed's engine state at the start."""

    memory_breakdown: bool | None = None
    """DeepSpeed's report of memory at each stage of a step."""

    flops_profiler: dict[str, Any] | None = None
    """DeepSpeed's FLOPs profiler."""

    comms_logger: dict[str, Any] | None = None
    """DeepSpeed's log of collectives."""

    tensorboard: dict[str, Any] | None = None
    """DeepSpeed's own TensorBoard writer, beside this project's `tensorboard_dir`."""

    wandb: dict[str, Any] | None = None
    """DeepSpeed's own Weights & Biases writer."""

    csv_monitor: dict[str, Any] | None = None
    """DeepSpeed's own CSV writer."""

    aio: dict[str, Any] | None = None
    """DeepSpeed's asynchronous file access."""

    data_efficiency: dict[str, Any] | None = None
    """DeepSpeed's data sampling and routing. `enabled: true` is refused: samples have one fixed order."""

    autotuning: dict[str, Any] | None = None
    """DeepSpeed's search for settings. `enabled: true` is refused for now."""

    deepspeed_extra_args: dict[str, Any] | None = None
    """More keys for DeepSpeed's configuration, of any name; they stand at its top level."""
