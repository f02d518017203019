"""What is allowed and yet deserves a second look."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.doubts import doubt_about_sums, doubts
from tests.support.small_config import small

# A configuration that nothing is to be said about: 10 steps, all three splits, saved half-way.
SOUND: dict[str, Any] = {
    "train_iters": 10,
    "lr_decay_iters": 10,
    "split": "8,1,1",
    "checkpoint_factor": 5,
    "log_interval": 1,
}


def doubts_about(**changes: Any) -> list[str]:
    return doubts(NeoXArgs.from_dict(small(**SOUND | changes)))


def test_a_sound_configuration() -> None:
    assert doubts_about() == []
    assert doubts_about(split="9,1,0") == []  # no test split is asked for
    assert doubts_about(split="1,0,0", eval_iters=0) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"warmup": 0.5, "lr_decay_iters": 20},
            "warmup: 0.5 x 20 decay steps = 10 steps of warm-up, the run has 10 (train_iters): the learning "
            "rate never reaches 0.001",
        ),
        (
            {"lr_decay_iters": 20},
            "lr_decay_iters: 20 is beyond train_iters 10: the run ends before the learning rate has come "
            "down to min_lr 0.0001",
        ),
        (
            {"lr_decay_iters": None, "lr_decay_fraction": 0.5, "warmup": 1.0, "log_interval": 11},
            "log_interval: 11 is beyond train_iters 10: no line of the log",
        ),
        (
            {"lr_decay_iters": None, "lr_decay_fraction": 0.0, "warmup": 1.0, "log_interval": 11},
            "log_interval: 11 is beyond train_iters 10: no line of the log",
        ),
        (
            {"lr_decay_iters": None, "warmup": 1.0},
            "warmup: 1 x 10 decay steps = 10 steps of warm-up, the run has 10 (train_iters): the learning "
            "rate never reaches 0.001",
        ),
        ({"log_interval": 11}, "log_interval: 11 is beyond train_iters 10: no line of the log"),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": 0}}, "min_lr": 0},
            "optimizer.params.lr: is 0: nothing is learnt",
        ),
        ({"split": "1"}, 'split: "1" gives validation nothing: there is none'),
        (
            {"data_path": None, "train_data_paths": ["a", "b"], "valid_data_paths": ["b"]},
            "valid_data_paths: b stands in train_data_paths too: what is learnt is scored",
        ),
        (
            {"data_path": None, "train_data_paths": ["a"]},
            "valid_data_paths: not given: there is no validation",
        ),
        ({"save": None}, "save: not given: nothing is saved, whatever checkpoint_factor says"),
        (
            {"checkpoint_factor": None},
            "checkpoint_factor: not given: one checkpoint, at the end of the run",
        ),
        (
            {"checkpoint_factor": 11},
            "checkpoint_factor: 11 is beyond train_iters 10: one checkpoint, at the end of the run",
        ),
        ({"extra_save_iters": [3, 11]}, "extra_save_iters: 11 are beyond train_iters 10"),
    ],
)
def test_a_doubt(changes: dict[str, Any], line: str) -> None:
    assert doubts_about(**changes) == [line]


def test_a_run_whose_steps_nobody_has_counted_yet() -> None:
    far = {"train_iters": None, "train_epochs": 2, "warmup": 1.0, "checkpoint_factor": 10**6}
    assert doubts_about(**far) == []


@pytest.mark.parametrize(
    ("changes", "micro_batches", "said"),
    [
        ({"precision": "bfloat16"}, 8, ["gradients of 8 micro-batches are added up in bf16"]),
        ({"precision": "bfloat16"}, 1, []),
        ({"precision": "bfloat16", "data_types": {"grad_accum_dtype": "fp32"}}, 8, []),
        ({"precision": "fp32"}, 8, []),
    ],
)
def test_sums_of_gradients(changes: dict[str, Any], micro_batches: int, said: list[str]) -> None:
    args = NeoXArgs.from_dict(small(**SOUND | changes))
    found = [line.removeprefix("data_types: ") for line in doubt_about_sums(args, micro_batches)]
    assert [line.split(",")[0] for line in found] == said
