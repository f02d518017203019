"""Protects that a run with dropout goes on from a checkpoint to the last bit, in every kind of layout.

Losses, norms, and at the end every number of the weights and of the optimizer's averages are those of the
run that was not stopped. Each layout once in fp32, and once in bf16 with activations computed again in
the backward pass, which has to repeat the dropout of the forward pass.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.checkpointing import find_checkpoint
from megatron.checkpointing.universal_files import open_store
from megatron.runtime.world import World
from tests.parallel.combinations import PAIRS
from tests.parallel.deviations import in_worlds
from tests.parallel.layouts import Layout, Variant, config_of
from tests.support.tiny import series, write_tokens
from tests.support.whole_runs import train_all

STOP = 3
STEPS = 2 * STOP
EXACT = ("train/lm_loss", "train/grad_norm", "validation/lm_loss")
PLACES = [
    *PAIRS,
    Layout(zero=0, context=2),
    Layout(zero=1, context=4),
    Layout(2, sequence=True, zero=3, context=2),
    Layout(2, sequence=True, data=2, zero=3, offload=("optimizer", "param")),
    Layout(data=2, zero=2, offload=("optimizer",)),
]
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16, activations computed again": {
        "precision": "bfloat16",
        "checkpoint_activations": True,
        "checkpoint_num_layers": 1,
    },
}


def config(folder: Path, place: Layout, kind: str) -> dict[str, Any]:
    return (
        config_of(place, Variant(2, untied=False), "Adam")
        | {
            "data_path": str(folder / "data" / "tiny"),
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
            "train_iters": STEPS,
            "eval_interval": STOP,
            "eval_iters": 1,
            "checkpoint_factor": STOP,
        }
        | KINDS[kind]
        | {"save": str(folder / "whole" / kind / str(place))}
    )


def stopped(folder: Path, whole: dict[str, Any], place: Layout, kind: str) -> dict[str, Any]:
    """The same run as one finds it that ended after step :data:`STOP`."""
    save = folder / "stopped" / kind / str(place)
    name = f"global_step{STOP}"
    shutil.copytree(Path(whole["save"]) / name, save / name)
    (save / "latest").write_text(name)
    return whole | {"save": str(save), "load": str(save)}


def runs(world: World, legs: list[tuple[Layout, dict[str, Any]]]) -> list[int]:
    return train_all(world, [config for _, config in legs])


def train_everywhere(configs: dict[tuple[Layout, str], dict[str, Any]]) -> None:
    """Do all runs, those of one number of ranks in one world."""
    legs = [(place, config) for (place, _), config in configs.items()]
    sizes = sorted({place.ranks for place, _ in legs}, reverse=True)
    worlds = [[leg for leg in legs if leg[0].ranks == size] for size in sizes]
    for steps in in_worlds(runs, worlds, timeout=900.0):
        assert set(steps) == {STEPS}


def states(root: str) -> dict[tuple[str, str, int], torch.Tensor]:
    """Every tensor that there is of each parameter, of each model-parallel rank."""
    info = find_checkpoint(root)
    assert info is not None
    assert info.step == STEPS
    store = open_store(info)
    return {
        (state, name, rank): store.read(state, name, rank)
        for state in store.states
        for name in store.shapes
        for rank in range(store.size)
    }


@pytest.mark.slow
@pytest.mark.ranks
def test_a_run_goes_on_exactly_in_every_layout(tmp_path: Path, say: Callable[[str], None]) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    legs = [(place, kind) for place in PLACES for kind in KINDS]
    whole = {leg: config(tmp_path, *leg) for leg in legs}
    train_everywhere(whole)
    again = {leg: stopped(tmp_path, whole[leg], *leg) for leg in legs}
    # New processes: nothing but the files is carried over.
    train_everywhere(again)
    differ = [leg for leg in legs if not _equal(whole[leg], again[leg])]
    say(f"{len(legs)} layouts and kinds go on exactly, except {[*map(str, differ)]}")
    assert not differ


def _equal(whole: dict[str, Any], again: dict[str, Any]) -> bool:
    for name in EXACT:
        half = STOP if name.startswith("train") else 1
        expected = series(Path(whole["save"]), name)
        assert len(set(expected)) == len(expected) == 2 * half
        if series(Path(again["save"]), name) != expected[half:]:
            return False
    expected_states, found = states(whole["save"]), states(again["save"])
    assert expected_states.keys() == found.keys()
    return all(torch.equal(found[key], tensor) for key, tensor in expected_states.items())
