"""Protects exact resume: a run that was stopped gives the numbers of one that was not, bit for bit."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from megatron.checkpointing import claimed_save_folder
from megatron.errors import CheckpointError
from megatron.runtime.world import World
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

EXACT = ("train/lm_loss", "train/learning_rate", "train/grad_norm", "validation/lm_loss")
VARIANTS = [
    f"{precision}-zero{stage}" for precision, stage in product(("fp32", "bfloat16"), (0, 1, 2))
]
# Documents kept apart.
APART = "fp32-zero1-apart"
VARIANTS.append(APART)
# The others in the slow tests only.
SAMPLE = ["fp32-zero0", "bfloat16-zero2", APART]
OTHERS = [variant for variant in VARIANTS if variant not in SAMPLE]


def config_of(folder: Path, variant: str, kind: str) -> dict[str, Any]:
    precision, stage = variant.removesuffix("-apart").split("-zero")
    apart = variant == APART
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
        reset_position_ids=apart,
        reset_attention_mask=apart,
        save=place,
        load=place,
    )


def whole_and_halves(folder: Path, variants: list[str]) -> Path:
    """Each variant in one go (``whole``) and in two processes of 10 steps (``halves``)."""
    write_tokens(folder / "data" / "tiny")
    whole = [config_of(folder, variant, "whole") for variant in variants]
    halves = [config_of(folder, variant, "halves") for variant in variants]
    stopping = [config | {"exit_interval": 10} for config in halves]
    number = len(variants)
    assert run_ranks(2, train_all, whole + stopping) == [[20] * number + [10] * number] * 2
    # New processes: nothing but the files is carried over.
    assert run_ranks(2, train_all, halves) == [[20] * number] * 2
    return folder


def require_equal(folder: Path, variant: str) -> None:
    whole, halves = folder / "whole" / variant, folder / "halves" / variant
    for name in EXACT:
        assert series(halves, name) == series(whole, name), name
    assert len(series(whole, "train/lm_loss")) == 5


def different_runs(folder: Path, variants: list[str]) -> int:
    return len({tuple(series(folder / "whole" / v, "train/lm_loss")) for v in variants})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_and_halves(tmp_path_factory.mktemp("resume"), SAMPLE)


@pytest.mark.ranks
@pytest.mark.parametrize("variant", SAMPLE)
def test_ten_and_ten_steps_equal_twenty(trained: Path, variant: str) -> None:
    require_equal(trained, variant)


@pytest.mark.ranks
def test_precisions_dropout_and_boundaries_really_differ(trained: Path) -> None:
    """The equalities above would also hold for a model that ignores its configuration."""
    assert different_runs(trained, SAMPLE) == len(SAMPLE)


@pytest.mark.slow
@pytest.mark.ranks
def test_so_they_do_in_every_precision_and_stage(tmp_path: Path) -> None:
    whole_and_halves(tmp_path, OTHERS)
    for variant in OTHERS:
        require_equal(tmp_path, variant)
    # Half precision runs stage 0 as stage 1, so these two are the same run; the others are not.
    assert different_runs(tmp_path, OTHERS) == len(OTHERS) - 1


@pytest.mark.ranks
def test_a_last_evaluation_that_a_kill_prevented_is_made_at_the_next_start(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    config = tiny_config(tmp_path, train_iters=4)
    folder = tmp_path / "checkpoints"
    assert run_ranks(2, train_all, [config]) == [[4]] * 2
    whole = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert len(whole) == 4 + 2
    assert run_ranks(2, train_all, [config]) == [[4]] * 2
    assert (folder / "metrics.jsonl").read_text() == "".join(whole)
    (folder / "metrics.jsonl").write_text("".join(whole[:4]))  # killed right after the last save
    assert run_ranks(2, train_all, [config]) == [[4]] * 2
    assert (folder / "metrics.jsonl").read_text() == "".join(whole)


@pytest.mark.ranks
def test_a_smaller_batch_goes_on_from_what_was_read(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    large = tiny_config(
        tmp_path, data_order="epochs", train_batch_size=120, lr_decay_iters=6, train_iters=4
    )
    assert run_ranks(1, train_all, [large | {"exit_interval": 3}]) == [[3]]
    small = large | {"train_batch_size": 4, "train_iters": 6}
    assert run_ranks(1, train_all, [small]) == [[6]]
    consumed = series(tmp_path / "checkpoints", "consumed_samples")
    assert consumed[-1] == 3 * 120 + 3 * 4


def claim_twice(world: World, folder: str) -> list[str]:
    said = []
    with claimed_save_folder(folder, world=world):
        try:
            with claimed_save_folder(folder, world=world):
                said.append("both are in")
        except CheckpointError as error:
            said.append(str(error))
    with claimed_save_folder(folder, world=world):
        said.append("free again")
    return said


@pytest.mark.ranks
def test_a_second_job_is_kept_out_of_the_folder(tmp_path: Path) -> None:
    for refused, again in run_ranks(2, claim_twice, str(tmp_path / "checkpoints")):
        assert "another job holds" in refused
        assert "choose another `save`" in refused
        assert again == "free again"


def refusals(world: World, configs: list[dict[str, Any]]) -> list[str]:
    """What each run ends with."""
    found = []
    for config in configs:
        with pytest.raises(CheckpointError) as caught:
            train_all(world, [config])
        found.append(str(caught.value))
    return found


@pytest.mark.ranks
def test_another_optimizers_state_is_refused(trained: Path) -> None:
    """torch would take it, and start the states anew that it lacks, or stop at them in the first step."""
    momentum = {"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}}
    largest = {"type": "Adam", "params": {"lr": 0.01, "amsgrad": True}}
    configs = [
        config_of(trained, variant, "whole") | {"optimizer": other}
        for variant in ("fp32-zero0", APART)
        for other in (momentum, largest)
    ]
    for found in run_ranks(2, refusals, configs):
        for text, kept in zip(
            found, ("momentum_buffer", "exp_avg, exp_avg_sq, max_exp") * 2, strict=True
        ):
            assert f"found: optimizer state exp_avg, exp_avg_sq\n  expected: {kept}" in text
            assert "no_load_optim: true (same step)" in text


def train_or_say(world: World, configs: list[dict[str, Any]]) -> list[int | str]:
    """The step at which each run ends, or why it does not start."""
    found: list[int | str] = []
    for config in configs:
        try:
            found += train_all(world, [config])
        except CheckpointError as error:
            found.append(str(error))
    return found


@pytest.mark.ranks
def test_only_what_was_trained_goes_on(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    first = tiny_config(tmp_path, train_iters=2, extra_save_iters=[0], data_order="epochs")
    tuned = first | {"finetune": True, "save": str(tmp_path / "tuned"), "extra_save_iters": None}
    runs = [
        first,
        # Of the same shapes, and another model.
        first | {"num_attention_heads": 8, "train_iters": 3},
        first | {"rotary_emb_base": 500, "rotary_pct": 0.5, "train_iters": 3},
        # Nothing is left to read.
        first | {"seed": 7},
        tuned | {"load": str(tmp_path / "misspelt")},
        first | {"load": str(tmp_path / "misspelt"), "train_iters": 3},
        tuned | {"rotary_emb_base": 500},
    ]
    ((end, heads, base, seed, missing, elsewhere, other),) = run_ranks(1, train_or_say, runs)
    assert (end, other) == (2, 2)
    assert "num_attention_heads: 4 → 8\n" in heads
    assert "rotary_pct: 1.0 → 0.5\n    rotary_emb_base: 10000 → 500\n" in base
    assert "train: seed: 1234 → 7\n" in seed
    assert "other content" not in seed
    assert "data_order" not in seed
    assert "misspelt holds no checkpoint\n  expected: the weights to start from" in missing
    assert "checkpoints holds global_step2, which this run does not go on from" in elsewhere
    assert "misspelt holds no checkpoint: its own would go among them" in elsewhere
    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("global_step*"))
    assert saved == ["global_step0", "global_step2"]
