"""The fields, grouped by concern: one frozen dataclass per section, one file per neighbourhood.

A field's annotation is its type and its bounds, its default is GPT-NeoX's unless its text says
otherwise, and the text below it is what ``configs/neox_arguments.md`` shows.
"""

from megatron.neox_arguments.sections.data import DataArgs, TokenizerArgs
from megatron.neox_arguments.sections.deepspeed import DeepSpeedArgs
from megatron.neox_arguments.sections.launch import LaunchArgs
from megatron.neox_arguments.sections.layout import BatchArgs, ParallelismArgs
from megatron.neox_arguments.sections.model import ModelArgs
from megatron.neox_arguments.sections.optimization import LRScheduleArgs, OptimArgs
from megatron.neox_arguments.sections.run import CheckpointingArgs, LoggingArgs, TrainingArgs
from megatron.neox_arguments.sections.textgen import TextgenArgs

__all__ = [
    "BatchArgs",
    "CheckpointingArgs",
    "DataArgs",
    "DeepSpeedArgs",
    "LRScheduleArgs",
    "LaunchArgs",
    "LoggingArgs",
    "ModelArgs",
    "OptimArgs",
    "ParallelismArgs",
    "TextgenArgs",
    "TokenizerArgs",
    "TrainingArgs",
]
