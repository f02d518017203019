"""Protects exact resume: a run that was stopped gives the numbers of one that was not, bit for bit."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.run import run_training
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens

EXACT = ("train/lm_loss", "train/learning_rate", "train/grad_norm", "validation/lm_loss")
VARIANTS = [
    f"{precision}-zero{stage}" for precision, stage in product(("fp32", "bfloat16"), (0, 1))
]


def train_all(world: World, configs: list[dict[str, Any]]) -> list[int]:
    """Several runs after one another in one world; the steps that each one reached."""
    return [
        run_training(NeoXArgs.from_dict(config, world_size=world.size), world).step
        for config in configs
    ]


def config_of(folder: Path, variant: str, kind: str) -> dict[str, Any]:
    precision, stage = variant.split("-zero")
    place = str(folder / kind / variant)
    return tiny_config(
        folder,
        precision=precision,
        zero_optimization={"stage": int(stage)},
        hidden_dropout=0.1,
        attention_dropout=0.1,
        gradient_accumulation_steps=2,
        log_interval=4,  # step 10 is in the middle of an interval
        num_workers=1,
        save=place,
        load=place,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All variants, each in one go (``whole``) and in two processes of 10 steps (``halves``)."""
    folder = tmp_path_factory.mktemp("resume")
    write_tokens(folder / "data" / "tiny")
    whole = [config_of(folder, variant, "whole") for variant in VARIANTS]
    halves = [config_of(folder, variant, "halves") for variant in VARIANTS]
    stopping = [config | {"exit_interval": 10} for config in halves]
    assert run_ranks(2, train_all, whole + stopping) == [[20] * 4 + [10] * 4] * 2
    # New processes: nothing but the files is carried over.
    assert run_ranks(2, train_all, halves) == [[20] * 4] * 2
    return folder


@pytest.mark.ranks
@pytest.mark.parametrize("variant", VARIANTS)
def test_ten_and_ten_steps_equal_twenty(trained: Path, variant: str) -> None:
    whole, halves = trained / "whole" / variant, trained / "halves" / variant
    for name in EXACT:
        assert series(halves, name) == series(whole, name), name
    assert len(series(whole, "train/lm_loss")) == 5


@pytest.mark.ranks
def test_precisions_and_dropout_really_differ(trained: Path) -> None:
    """The equalities above would also hold for a model that ignores its configuration."""
    losses = {tuple(series(trained / "whole" / v, "train/lm_loss")) for v in VARIANTS}
    # Half precision runs stage 0 as stage 1, so these two are the same run; fp32's two are not.
    assert len(losses) == 3
