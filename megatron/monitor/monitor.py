"""One flat dictionary of numbers per logged step, handed to every place that keeps them.

The names are ``iteration`` and ``consumed_samples``; ``train/lm_loss``, ``train/learning_rate``,
``train/grad_norm``; in fp16 ``train/loss_scale`` and ``train/skipped_iterations`` (since the row
before); ``runtime/tokens_per_sec``, ``runtime/samples_per_sec``,
``runtime/iteration_time`` and ``runtime/data_wait`` (seconds a step); ``validation/lm_loss`` and
``test/lm_loss``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from megatron.monitor.jsonl import JsonlSink
from megatron.monitor.tensorboard import TensorBoardSink

if TYPE_CHECKING:  # this room imports no torch, so that a configuration can be described without it
    from megatron.runtime.world import World

# None is a number that does not exist, such as the gradient norm of an evaluation.
Metrics: TypeAlias = Mapping[str, float | int | None]

METRICS_FILE = "metrics.jsonl"


class Sink(Protocol):
    """A place that keeps metrics."""

    def write(self, metrics: Metrics) -> None:
        """Keep one row; it has an ``iteration``."""

    def cut_after(self, iteration: int) -> None:
        """Forget the rows of later iterations: the run goes on from ``iteration``."""

    def close(self) -> None:
        """Finish writing."""


class Monitor:
    """Hands each row to all sinks. Without sinks (every rank but the first) it does nothing."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = tuple(sinks)

    def write(self, metrics: Metrics) -> None:
        assert "iteration" in metrics
        for sink in self._sinks:
            sink.write(metrics)

    def cut_after(self, iteration: int) -> None:
        for sink in self._sinks:
            sink.cut_after(iteration)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def open_monitor(
    world: World,
    *,
    log_dir: str | None = None,
    save: str | None = None,
    tensorboard_dir: str | None = None,
) -> Monitor:
    """The monitor of this rank, as the configuration's keys of the same names ask for it.

    Rank 0 writes ``metrics.jsonl`` into ``log_dir``, else into ``save``, else nowhere, and
    TensorBoard's files into ``tensorboard_dir`` when it is set.

    Raises:
        NeoXError: a folder cannot be written to.
    """
    if not world.is_first:
        return Monitor()
    sinks: list[Sink] = []
    folder = log_dir or save
    if folder:
        sinks.append(JsonlSink(Path(folder) / METRICS_FILE))
    if tensorboard_dir:
        sinks.append(TensorBoardSink(Path(tensorboard_dir)))
    return Monitor(sinks)
