"""The fields, grouped by concern: one frozen dataclass per section, one file per neighbourhood.

A field's annotation is its type, its bounds and its state; its default is GPT-NeoX's unless its text
says otherwise; and the text below it is what ``configs/neox_arguments.md`` shows. A field *works*,
unless :class:`Ignored` or :class:`Refused` marks it.
"""

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
    "TextgenArgs",
    "TokenizerArgs",
    "TrackerArgs",
    "TrainingArgs",
    "VariantArgs",
]
