"""A real run on two ranks over blends: stopped and resumed it is the same, changed it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron.errors import NeoXError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.run import run_training
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens


def config_of(folder: Path, place: str, **changes: Any) -> dict[str, Any]:
    data = folder / "data"
    blends: dict[str, Any] = {
        "data_path": None,
        "split": None,
        "train_data_paths": [str(data / "a"), str(data / "b"), str(data / "c")],
        "train_data_weights": [0.6, 0.3, 0.1],
        "valid_data_paths": [str(data / "v"), str(data / "a")],
        "valid_data_weights": [3, 1],
        "save": str(folder / place),
        "load": str(folder / place),
    }
    return tiny_config(folder, **(blends | changes))


def run_all(world: World, configs: list[dict[str, Any]]) -> list[int | str]:
    """The step that each run reached, or what it said when it stopped."""
    ends: list[int | str] = []
    for config in configs:
        try:
            args = NeoXArgs.from_dict(config, world_size=world.size)
            ends.append(run_training(args, world).step)
        except NeoXError as error:
            ends.append(str(error))
    return ends


@pytest.mark.ranks
def test_a_blend_is_resumed_exactly_and_never_changed_unnoticed(tmp_path: Path) -> None:
    for seed, (name, documents) in enumerate({"a": 40, "b": 25, "c": 2, "v": 9}.items()):
        write_tokens(tmp_path / "data" / name, documents=documents, seed=seed)
    whole, half = config_of(tmp_path, "whole"), config_of(tmp_path, "half")
    by_epochs = config_of(
        tmp_path, "epochs", train_iters=None, train_epochs=0.25, train_data_weights=None
    )
    # Files whose labels are the tokens: the same as none.
    texts = whole["train_data_paths"]
    labelled = config_of(tmp_path, "labelled", train_label_data_paths=texts)
    configs = [whole, half | {"exit_interval": 10}, by_epochs, labelled]
    first, second = run_ranks(2, run_all, configs)
    assert first == second
    assert first[:2] == [20, 10]
    assert first[3] == 20
    losses = series(tmp_path / "whole", "train/lm_loss")
    assert series(tmp_path / "labelled", "train/lm_loss") == losses
    assert isinstance(first[2], int)
    assert 5 < first[2] < 20

    changed = half | {"train_data_weights": [0.5, 0.3, 0.2]}
    fewer = half | {"train_data_paths": half["train_data_paths"][:2], "train_data_weights": [2, 1]}
    refused, dropped, resumed = run_ranks(2, run_all, [changed, fewer, half])[0]
    assert "train: dataset 1 weight: 6 → 5" in str(refused)
    assert "train: datasets: 3 → 2" in str(dropped)
    assert resumed == 20
    for name in ("train/lm_loss", "train/grad_norm", "validation/lm_loss"):
        assert series(tmp_path / "half", name) == series(tmp_path / "whole", name), name


@pytest.mark.ranks
def test_a_blend_ordered_by_epochs_may_change(tmp_path: Path) -> None:
    for seed, (name, documents) in enumerate({"a": 40, "b": 25, "c": 20, "v": 9}.items()):
        write_tokens(tmp_path / "data" / name, documents=documents, seed=seed)
    full = config_of(tmp_path, "run", data_order="epochs", train_data_weights=[1, 1, 2])
    two = full | {
        "train_data_paths": full["train_data_paths"][:2],
        "train_data_weights": [3, 1],
        "exit_interval": 10,
    }
    ends = run_ranks(2, run_all, [two, full | {"exit_interval": 15}, full])
    assert ends == [[10, 15, 20]] * 2
    manifest = json.loads((tmp_path / "run" / "global_step20" / "manifest.json").read_text())
    progress, consumed = manifest["state"]["progress"], manifest["state"]["consumed_samples"]
    given = {Path(path).name: progress["given"][key] for key, path in progress["paths"].items()}
    half = consumed // 2
    turns = {"a": half * 3 // 4 + half // 4, "b": half // 4 + half // 4, "c": half // 2}
    assert all(abs(given[name] - count) <= 2 for name, count in turns.items())
    assert sum(given.values()) == consumed
    assert progress["leg"]["start"] == half

    # As many documents of the same sizes: another text all the same.
    path = tmp_path / "data" / "b.bin"
    path.write_bytes(np.fromfile(path, np.uint16)[::-1].tobytes())
    longer = full | {"train_iters": 24, "override_lr_scheduler": True}
    refused, allowed = run_ranks(2, run_all, [longer, longer | {"allow_data_change": True}])[0]
    assert "b: other content, documents or labels than before" in str(refused)
    assert allowed == 24
