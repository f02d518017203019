"""DeepSpeed's own sections: checked where this project knows better, and handed on as written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from megatron.neox_arguments.typed import (
    Ignored,
    NonNegativeInt,
    PositiveFloat,
    Refused,
)

Group = dict[str, Any] | None
_REMOVED = Refused("DeepSpeed no longer has it: take it out")


@dataclass(frozen=True)
class DeepSpeedArgs:
    """Keys of DeepSpeed's configuration that no other section holds. Whatever is written here reaches
    DeepSpeed with the value that is written."""

    scheduler: Annotated[
        Group, Refused("lr_decay_style, warmup and min_lr set the learning rate: take it out")
    ] = None
    """DeepSpeed's learning-rate schedule."""

    prescale_gradients: bool = False
    """Scale gradients before they are summed over ranks instead of after."""

    gradient_predivide_factor: PositiveFloat = 1.0
    """With `prescale_gradients`: divide gradients by this before they are summed."""

    fp16: Group = None
    """DeepSpeed's half precision with loss scaling; `enabled` must agree with `precision`. By default the
    loss is multiplied by 2^`initial_scale_power` (16) at first. A step whose gradients overflow is skipped,
    without a change of weights or learning rate, and halves the factor (see `hysteresis`);
    `loss_scale_window` steps without one double it."""

    bf16: Group = None
    """DeepSpeed's bfloat16; `enabled` must agree with `precision`."""

    torch_autocast: Annotated[
        Group, Refused("not used here: take it out, and use precision: bfloat16")
    ] = None
    """Automatic casting."""

    communication_data_type: Literal["fp32", "fp16", "bf16", "bfp16"] | None = None
    """Type in which gradients are summed over ranks. Default: that of the weights. In half precision the sum
    is rounded again behind it unless `data_types: {grad_accum_dtype: fp32}` is set too."""

    seq_parallel_communication_data_type: Literal["fp32", "fp16", "bf16", "bfp16"] | None = None
    """Type in which sequence-parallel gradients travel."""

    data_types: Group = None
    """DeepSpeed's types. `grad_accum_dtype: fp32` adds up the gradients of micro-batches in fp32, which
    takes more memory; by default they add up in the type of the weights."""

    zero_allow_untested_optimizer: bool | None = None
    """Let ZeRO run with an optimizer that DeepSpeed has no test for. Set by itself for `sgd`."""

    zero_force_ds_cpu_optimizer: bool | None = None
    """Insist on DeepSpeed's own Adam when the optimizer is offloaded."""

    checkpoint: Group = None
    """DeepSpeed's checkpoint options; `use_node_local_storage` sets the key of that name."""

    activation_checkpointing: Annotated[
        Group,
        Ignored(
            "activations are recomputed by PyTorch: see checkpoint_activations, partition_activations and "
            "checkpoint_in_cpu"
        ),
    ] = None
    """Options of DeepSpeed's activation checkpointing."""

    dump_state: bool = False
    """Print DeepSpeed's engine state at the start."""

    memory_breakdown: bool | None = None
    """DeepSpeed's report of memory at each stage of a step."""

    flops_profiler: Group = None
    """DeepSpeed's FLOPs profiler."""

    comms_logger: Group = None
    """DeepSpeed's log of collectives."""

    tensorboard: Group = None
    """DeepSpeed's own TensorBoard writer, beside this project's `tensorboard_dir`."""

    wandb: Group = None
    """DeepSpeed's own Weights & Biases writer."""

    csv_monitor: Group = None
    """DeepSpeed's own CSV writer."""

    aio: Group = None
    """DeepSpeed's asynchronous file access."""

    data_efficiency: Annotated[Group, Refused("samples have one fixed order: take it out")] = None
    """DeepSpeed's data sampling and routing."""

    autotuning: Annotated[Group, Refused("not supported yet: take it out")] = None
    """DeepSpeed's search for settings."""


@dataclass(frozen=True)
class DeepSpeedExtrasArgs:
    """How DeepSpeed's configuration is put together, and keys that DeepSpeed no longer has."""

    deepspeed: Annotated[bool, Refused("training always runs through DeepSpeed: take it out")] = (
        True
    )
    """Whether training runs through DeepSpeed's engine."""

    deepspeed_extra_args: Group = None
    """More keys for DeepSpeed's configuration; they stand at its top level."""

    fp32_allreduce: bool = False
    """true averages gradients in fp32: `communication_data_type: fp32` in DeepSpeed's words."""

    sparse_gradients: Annotated[
        bool,
        Refused("DeepSpeed no longer has it: gradients of embeddings are exchanged whole"),
    ] = False
    """Whether only touched rows of the embedding's gradient travel."""

    amp: Annotated[Group, _REMOVED] = None
    """Apex's mixed precision."""

    sparse_attention: Annotated[Group, _REMOVED] = None
    """DeepSpeed's sparse attention."""

    compression_training: Annotated[Group, _REMOVED] = None
    """Quantisation and pruning while training."""

    elasticity: Annotated[Group, Refused("the batch keys set the batch: take it out")] = None
    """Batch sizes that follow the number of ranks."""

    curriculum_learning: Annotated[Group, Refused("sequence lengths are fixed: take it out")] = None
    """Sequences that grow while training."""

    curriculum_seqlen: Annotated[
        NonNegativeInt, Ignored("has a meaning with curriculum_learning only")
    ] = 0
    """Their length now, which GPT-NeoX keeps there."""
