"""A run never replaces checkpoints that it does not go on from; what is usual goes on as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.checkpointing.find import find_checkpoint
from megatron.checkpointing.others_work import refuse_to_replace
from megatron.errors import CheckpointError
from megatron.launch.load_facts import load_facts
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from tests.checkpointing.folders_on_disk import make_checkpoint
from tests.support.small_config import small


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ``first`` holds step 10 and ``second`` steps 20 and 30."""
    monkeypatch.chdir(tmp_path)
    for name, steps in (("first", (10,)), ("second", (20, 30))):
        for step in steps:
            make_checkpoint(tmp_path / name, step)
        (tmp_path / name / "latest").write_text(f"global_step{steps[-1]}")
    return tmp_path


def said(**changes: Any) -> str:
    """What a start of such a run says; empty where it may begin."""
    args = NeoXArgs.from_dict(small(**({"train_iters": 100} | changes)))
    load = args.checkpointing.load
    try:
        found = find_checkpoint(load) if load else None
        refuse_to_replace(args, found, World(), train_iters=args.training.train_iters)
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"load": "first", "save": "second"}, "this run starts from "),
        ({"load": None, "save": "second"}, "starts from step 0, because load is not set"),
        ({"load": "first", "save": "second", "finetune": True}, "at step 0 (finetune: true)"),
        ({"load": "second", "save": "second", "finetune": True}, "at step 0 (finetune: true)"),
        (
            {"load": "second", "save": "first", "keep_last_n_checkpoints": 1},
            "1 checkpoint(s) there; this run starts from",
        ),
    ],
)
def test_what_would_be_replaced_stops_the_run(changes: dict[str, Any], why: str) -> None:
    text = said(**changes)
    assert text.startswith(f"save: {changes['save']} holds global_step")
    assert "which this run does not go on from\n" in text
    assert why in text
    assert f"to do: set load to {changes['save']}" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"load": "second", "save": "second"},
        {"load": "second", "save": "second/../second/"},
        {"load": "link", "save": "second", "keep_last_n_checkpoints": 1},
        {"load": "first", "save": "new"},
        {"load": "first", "save": "new", "finetune": True},
        {"load": "died", "save": "died"},  # before its first save
        {"load": None, "save": "died"},
        {"load": None, "save": None},
        {"load": "second", "save": "first"},  # step 10 stays as it is
        {"load": "first", "save": "second", "do_train": False},
        {"load": "first", "save": "second", "train_iters": 10},  # it is done
    ],
)
def test_what_is_usual_goes_on(root: Path, changes: dict[str, Any]) -> None:
    (root / "link").symlink_to("second")
    (root / "died").mkdir()
    (root / "died" / "metrics.jsonl").touch()
    (root / "died" / ".tmp-global_step5").mkdir()
    assert said(**changes) == ""


def test_one_of_gpt_neox_is_not_joined_by_a_run_from_nothing(root: Path) -> None:
    (root / "neox" / "global_step7").mkdir(parents=True)  # no manifest
    assert said(load=None, save="neox") == ""  # and nothing names it
    (root / "neox" / "latest").write_text("global_step7")
    for load in (None, "misspelt"):
        assert said(load=load, save="neox").startswith("save: neox holds global_step7, which this")
    assert said(load="first", save="neox") == ""  # it stays beside the run's own
    (root / "neox" / "latest").write_text("something")
    assert "expected: the name of a folder, global_step<N>" in said(load=None, save="neox")


@pytest.mark.usefixtures("root")
def test_a_check_foresees_it() -> None:
    args = NeoXArgs.from_dict(small(load=None, save="second", train_iters=100))
    seen = load_facts(args, ranks=1, nodes=1)
    assert seen is not None
    assert "save: second holds global_step30, which this run does not go on from" in seen.refusal
    args = NeoXArgs.from_dict(small(load=None, save="new", train_iters=100))
    assert load_facts(args, ranks=1, nodes=1) is None
