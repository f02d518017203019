"""The fields, grouped by concern: one frozen dataclass per section, one file per neighbourhood.

A field's annotation is its type, its bounds and its state; its default is GPT-NeoX's unless its text
says otherwise; and the text below it is what ``configs/neox_arguments.md`` shows. A field *works*,
unless :class:`Ignored` or :class:`Refused` marks it.
"""

from dataclasses import dataclass, field

from megatron.neox_arguments.sections.alignment import AlignmentArgs
from megatron.neox_arguments.sections.data import DataArgs, TokenizerArgs
from megatron.neox_arguments.sections.deepspeed import DeepSpeedArgs, DeepSpeedExtrasArgs
from megatron.neox_arguments.sections.diagnostics import DiagnosticsArgs, TrackerArgs
from megatron.neox_arguments.sections.kernels import KernelArgs
from megatron.neox_arguments.sections.labelled_data import LabelledDataArgs
from megatron.neox_arguments.sections.launch import LaunchArgs
from megatron.neox_arguments.sections.layout import BatchArgs, ParallelismArgs
from megatron.neox_arguments.sections.legacy import LegacyArgs
from megatron.neox_arguments.sections.loss_scaling import LossScalingArgs
from megatron.neox_arguments.sections.model import ModelArgs
from megatron.neox_arguments.sections.moe import MoEArgs
from megatron.neox_arguments.sections.mup import MupArgs
from megatron.neox_arguments.sections.optimization import LRScheduleArgs, OptimArgs
from megatron.neox_arguments.sections.recomputation import RecomputationArgs
from megatron.neox_arguments.sections.run import CheckpointingArgs, LoggingArgs, TrainingArgs
from megatron.neox_arguments.sections.textgen import TextgenArgs
from megatron.neox_arguments.sections.variants import VariantArgs


@dataclass(frozen=True)
class Sections:
    """All of them, by the names under which code takes the one that it needs."""

    parallelism: ParallelismArgs = field(default_factory=ParallelismArgs)
    batch: BatchArgs = field(default_factory=BatchArgs)
    model: ModelArgs = field(default_factory=ModelArgs)
    variants: VariantArgs = field(default_factory=VariantArgs)
    moe: MoEArgs = field(default_factory=MoEArgs)
    mup: MupArgs = field(default_factory=MupArgs)
    kernels: KernelArgs = field(default_factory=KernelArgs)
    optim: OptimArgs = field(default_factory=OptimArgs)
    lr_schedule: LRScheduleArgs = field(default_factory=LRScheduleArgs)
    loss_scaling: LossScalingArgs = field(default_factory=LossScalingArgs)
    tokenizer: TokenizerArgs = field(default_factory=TokenizerArgs)
    data: DataArgs = field(default_factory=DataArgs)
    labelled_data: LabelledDataArgs = field(default_factory=LabelledDataArgs)
    training: TrainingArgs = field(default_factory=TrainingArgs)
    alignment: AlignmentArgs = field(default_factory=AlignmentArgs)
    recomputation: RecomputationArgs = field(default_factory=RecomputationArgs)
    checkpointing: CheckpointingArgs = field(default_factory=CheckpointingArgs)
    logging: LoggingArgs = field(default_factory=LoggingArgs)
    trackers: TrackerArgs = field(default_factory=TrackerArgs)
    diagnostics: DiagnosticsArgs = field(default_factory=DiagnosticsArgs)
    textgen: TextgenArgs = field(default_factory=TextgenArgs)
    launch: LaunchArgs = field(default_factory=LaunchArgs)
    ds: DeepSpeedArgs = field(default_factory=DeepSpeedArgs)
    ds_extras: DeepSpeedExtrasArgs = field(default_factory=DeepSpeedExtrasArgs)
    legacy: LegacyArgs = field(default_factory=LegacyArgs)


__all__ = [
    "AlignmentArgs",
    "BatchArgs",
    "CheckpointingArgs",
    "DataArgs",
    "DeepSpeedArgs",
    "DeepSpeedExtrasArgs",
    "DiagnosticsArgs",
    "KernelArgs",
    "LRScheduleArgs",
    "LabelledDataArgs",
    "LaunchArgs",
    "LegacyArgs",
    "LoggingArgs",
    "LossScalingArgs",
    "MoEArgs",
    "ModelArgs",
    "MupArgs",
    "OptimArgs",
    "ParallelismArgs",
    "RecomputationArgs",
    "Sections",
    "TextgenArgs",
    "TokenizerArgs",
    "TrackerArgs",
    "TrainingArgs",
    "VariantArgs",
]
