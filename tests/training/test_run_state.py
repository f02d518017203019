"""Protects what a checkpoint carries of a run's state."""

import json
import math

from megatron.training.run_state import RunState


def test_mean_loss_survives_a_restart_in_mid_interval() -> None:
    whole, first = RunState(), RunState()
    for loss in (0.1, 0.7, 0.2):
        whole.after_step(loss, samples=8)
    first.after_step(0.1, samples=8)
    second = RunState.from_dict(json.loads(json.dumps(first.as_dict())))
    second.after_step(0.7, samples=8)
    second.after_step(0.2, samples=8)
    assert second == whole
    assert second.consumed_samples == 24
    assert second.take_interval() == whole.take_interval()
    mean, skipped = second.take_interval()
    assert math.isnan(mean)
    assert skipped == 0
