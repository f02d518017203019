"""The fan-out, who writes what where, and TensorBoard's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.errors import NeoXError
from megatron.monitor import Monitor, TensorBoardSink, open_monitor
from megatron.runtime.world import World


class Recorder:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def write(self, metrics: object) -> None:
        self.calls.append(metrics)

    def cut_after(self, iteration: int) -> None:
        self.calls.append(("cut", iteration))

    def close(self) -> None:
        self.calls.append("closed")


def test_every_sink_gets_every_call() -> None:
    sinks = [Recorder(), Recorder()]
    monitor = Monitor(sinks)
    monitor.cut_after(3)
    monitor.write({"iteration": 4, "loss": 1.5})
    monitor.close()
    for sink in sinks:
        assert sink.calls == [("cut", 3), {"iteration": 4, "loss": 1.5}, "closed"]


@pytest.mark.parametrize(
    ("rank", "log_dir", "save", "files"),
    [
        (0, "logs", "ckpt", {"logs/metrics.jsonl"}),
        (0, None, "ckpt", {"ckpt/metrics.jsonl"}),
        (0, None, None, set()),
        (1, "logs", "ckpt", set()),
    ],
)
def test_where_metrics_go(
    tmp_path: Path, rank: int, log_dir: str | None, save: str | None, files: set[str]
) -> None:
    monitor = open_monitor(
        World(rank=rank, size=2),
        log_dir=str(tmp_path / log_dir) if log_dir else None,
        save=str(tmp_path / save) if save else None,
    )
    monitor.write({"iteration": 1})
    monitor.close()
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == files


def test_tensorboard_hides_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator
    first = TensorBoardSink(tmp_path)
    for step in (1, 2, 3):
        first.write({"iteration": step, "train/lm_loss": float(step), "train/grad_norm": None})
    first.close()
    second = TensorBoardSink(tmp_path)
    second.cut_after(1)
    second.write({"iteration": 2, "train/lm_loss": 20.0})
    second.close()

    events = accumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/lm_loss"]
    seen = [(event.step, event.value) for event in events.Scalars("train/lm_loss")]
    assert seen == [(1, 1.0), (2, 20.0)]


def test_tensorboard_dir_that_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard")
    (tmp_path / "tb").write_text("")
    with pytest.raises(NeoXError, match="choose another folder"):
        TensorBoardSink(tmp_path / "tb")
