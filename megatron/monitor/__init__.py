"""What a run says about itself: rows of metrics for programs, lines for people."""

from megatron.monitor.arithmetic import flops_per_token, model_flops_utilization, peak_flops
from megatron.monitor.console import (
    BatchFacts,
    Interval,
    LayoutFacts,
    ModelFacts,
    RunFacts,
    SplitFacts,
    evaluation_line,
    facts_block,
    interval_line,
)
from megatron.monitor.estimates import MemoryEstimate, estimate_memory
from megatron.monitor.jsonl import JsonlSink
from megatron.monitor.monitor import METRICS_FILE, Metrics, Monitor, Sink, open_monitor
from megatron.monitor.tensorboard import TensorBoardSink

__all__ = [
    "METRICS_FILE",
    "BatchFacts",
    "Interval",
    "JsonlSink",
    "LayoutFacts",
    "MemoryEstimate",
    "Metrics",
    "ModelFacts",
    "Monitor",
    "RunFacts",
    "Sink",
    "SplitFacts",
    "TensorBoardSink",
    "estimate_memory",
    "evaluation_line",
    "facts_block",
    "flops_per_token",
    "interval_line",
    "model_flops_utilization",
    "open_monitor",
    "peak_flops",
]
