"""What DeepSpeed's files depend on is compared before DeepSpeed opens them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.checkpointing import CheckpointInfo, EngineFacts, load_checkpoint
from megatron.errors import CheckpointError
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.runtime.world import World
from tests.checkpointing.folders_on_disk import make_manifest

SAVED = EngineFacts(
    world_size=2, data_parallel_size=2, model_parallel_size=1, zero_stage=1, precision="bfloat16"
)
RESHAPE = "python tools/ckpts/reshard.py --load /x --iteration 5 --save /x-whole"


loss_scaler = deepspeed.runtime.fp16.loss_scaler


def scaler(*, scale: float, window: int, hysteresis: int, iteration: int) -> Any:
    found = loss_scaler.DynamicLossScaler(
        init_scale=scale,
        scale_window=window,
        min_scale=1.0,
        delayed_shift=hysteresis,
        consecutive_hysteresis=False,
    )
    found.cur_iter, found.last_overflow_iter = iteration, iteration - 2
    return found


class FakeEngine:
    """Has the given facts; its loader notes what it was asked for."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.dp_world_size = facts.data_parallel_size
        # To DeepSpeed all ranks of a pipeline are model-parallel.
        self.mp_world_size = facts.model_parallel_size * max(1, facts.pipe_parallel_size)
        self.pipeline_parallelism = facts.pipe_parallel_size > 0
        self.module = SimpleNamespace(num_stages=facts.pipe_parallel_size)
        self.asked: list[Any] = []
        self.global_steps = self.skipped_steps = 0
        self.found: str | None = "path"
        self.stored_scaler = scaler(scale=512.0, window=10, hysteresis=4, iteration=5)
        self.optimizer = SimpleNamespace(
            param_groups=[{"params": [], "weight_decay": 0.5}],
            clip_grad=1.0,
            loss_scaler=scaler(scale=2.0**16, window=1000, hysteresis=2, iteration=0),
            dynamic_loss_scale=True,
            optimizer=torch.optim.SGD(
                [torch.zeros(1)], lr=1.0
            ),  # without momentum it keeps no state
        )

    def zero_optimization_stage(self) -> int:
        return self.facts.zero_stage

    def bfloat16_enabled(self) -> bool:
        return self.facts.precision == "bfloat16"

    def fp16_enabled(self) -> bool:
        return self.facts.precision == "fp16"

    def load_checkpoint(self, folder: str, tag: str, load_optimizer_states: bool) -> Any:
        self.asked.append((folder, tag, load_optimizer_states))
        self.global_steps = 5
        # A loaded optimizer has new groups, with the settings of the run that saved them.
        self.optimizer.param_groups = [{"params": ["loaded"], "weight_decay": 0.1}]
        self.optimizer.clip_grad = 7.0
        self.optimizer.loss_scaler = self.stored_scaler
        return self.found, {}


def load(now: EngineFacts, load_optim: bool = True, step: int = 5, **manifest: Any) -> FakeEngine:
    engine = FakeEngine(now)
    content = make_manifest(step, **({"engine": SAVED} | manifest))
    info = CheckpointInfo(Path("/x/global_step5"), step, content)
    state = load_checkpoint(engine, info, world=World(), load_optim=load_optim)
    assert state == content.state
    return engine


@pytest.mark.parametrize(
    ("changes", "saved", "says", "remedy"),
    [
        (
            {"data_parallel_size": 4},
            {},
            "data_parallel_size x context_parallel_size 2, this run has 4",
            RESHAPE,
        ),
        ({"zero_stage": 2}, {}, "zero_stage 1, this run has 2", RESHAPE),
        ({"precision": "fp32"}, {}, "precision bfloat16, this run has fp32", RESHAPE),
        ({}, {"has_optimizer": False}, "no optimizer state", "no_load_optim: true"),
    ],
)
def test_what_the_optimizer_state_depends_on(
    changes: dict[str, Any], saved: dict[str, Any], says: str, remedy: str
) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        load(replace(SAVED, **changes), **saved)
    assert remedy in str(caught.value)
    assert ("reshape_on_load: true" in str(caught.value)) == (remedy == RESHAPE)
    engine = load(replace(SAVED, **changes), load_optim=False, **saved)
    assert engine.asked == [("/x", "global_step5", False)]


def test_without_zero_any_number_of_data_ranks_will_do() -> None:
    saved = replace(SAVED, zero_stage=0, precision="fp32")
    engine = load(replace(saved, data_parallel_size=8, world_size=8), engine=saved)
    assert engine.asked == [("/x", "global_step5", True)]


@pytest.mark.parametrize("load_optim", [True, False])
def test_split_weights_need_the_same_split(load_optim: bool) -> None:
    with pytest.raises(CheckpointError, match="model_parallel_size 1, this run has 2") as caught:
        load(replace(SAVED, model_parallel_size=2), load_optim)
    assert RESHAPE in str(caught.value)


def test_what_deepspeed_makes_of_it_is_checked() -> None:
    with pytest.raises(CheckpointError, match="holds step 5; expected 6"):
        load(SAVED, step=6)
    engine = FakeEngine(SAVED)
    engine.found = None
    info = CheckpointInfo(Path("/x/global_step5"), 5, make_manifest(5, engine=SAVED))
    with pytest.raises(CheckpointError, match="found nothing to load"):
        load_checkpoint(engine, info, world=World())


def test_settings_of_the_optimizer_are_the_configuration_s() -> None:
    engine = load(SAVED)
    optimizer = engine.optimizer
    assert optimizer.param_groups == [{"params": ["loaded"], "weight_decay": 0.5}]
    assert optimizer.clip_grad == 1.0
    scaling = optimizer.loss_scaler
    assert (scaling.cur_scale, scaling.cur_iter, scaling.last_overflow_iter) == (512.0, 5, 3)
    assert (scaling.scale_window, scaling.cur_hysteresis, scaling.delayed_shift) == (1000, 2, 2)


def test_a_loss_scale_that_is_fixed_from_now_on_is_the_configuration_s() -> None:
    engine = FakeEngine(SAVED)
    engine.optimizer.loss_scaler = loss_scaler.LossScaler(scale=128.0)
    info = CheckpointInfo(Path("/x/global_step5"), 5, make_manifest(5, engine=SAVED))
    load_checkpoint(engine, info, world=World())
    assert engine.optimizer.loss_scaler.loss_scale == 128.0
    assert engine.optimizer.dynamic_loss_scale is False


def test_a_foreign_checkpoint_does_not_get_there() -> None:
    engine = FakeEngine(SAVED)
    with pytest.raises(CheckpointError, match="finetune: true"):
        load_checkpoint(engine, CheckpointInfo(Path("/x/global_step5"), 5, None), world=World())
    assert engine.asked == []


def test_another_number_of_stages_is_refused() -> None:
    with pytest.raises(CheckpointError, match="pipe_parallel_size 0, this run has 2"):
        load(replace(SAVED, pipe_parallel_size=2))
