"""Protects that a long score says how far it is, and changes nothing that is scored."""

from __future__ import annotations

import logging

import pytest
import torch

from megatron.data.step_batch import StepBatch
from megatron.evaluation.progress import with_progress

pytestmark = pytest.mark.usefixtures("logs_reach_pytest")


def batch(size: int) -> StepBatch:
    tokens, mask = torch.zeros(1, size, 5, dtype=torch.int64), torch.ones(1, size, 4)
    return StepBatch(tokens, mask, first_sample=0, num_samples=size)


def test_lines_come_at_their_pace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "megatron")
    batches = [batch(2), batch(2), batch(1)]
    # Ten windows on two ranks, of which this one has five.
    found = with_progress(batches, num_windows=10, seq_length=4, ranks=2, pace_s=0.0)
    assert [id(each) for each in found] == [id(each) for each in batches]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" | ")[0] for line in lines] == ["window  4/10", "window  8/10"]
    assert all(" tok/s | ETA " in line for line in lines)
    caplog.clear()
    assert len(list(with_progress(batches, num_windows=10, seq_length=4, ranks=2))) == 3
    assert caplog.records == []
