"""Protects muP in training: any layout learns the same, checkpoints go on, and widths do not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.errors import CheckpointError
from megatron.model import shapes_of, write_base_shapes
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.coordinates import check_coordinates, slopes
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.parallel.layouts import Layout, Variant, train
from tests.support.models import tiny_args
from tests.support.ranks import run_ranks
from tests.support.tiny import series, tiny_config, write_tokens
from tests.support.whole_runs import train_all

TIED, ONE_KV_HEAD = Variant(untied=False), Variant(kv_heads=1, options=(("norm", "rmsnorm"),))
CASES = [
    (Layout(model=2, sequence=True, zero=1), ONE_KV_HEAD),
    (Layout(pipe=2), TIED),
]
MORE = [
    (Layout(data=2, zero=3), TIED),
    (Layout(model=2), TIED),
    (Layout(pipe=2, zero=1), ONE_KV_HEAD),
    (Layout(data=2, zero=2), ONE_KV_HEAD),
]


def losses(world: World, cases: list[tuple[Layout, Variant]], folder: Path) -> list[list[float]]:
    """Of 10 steps each of a model 4 times as wide as its base model."""
    found = []
    for place, variant in cases:
        base = tiny_args(
            hidden_size=8,
            num_kv_heads=variant.kv_heads,
            no_weight_tying=variant.untied,
            **dict(variant.options),
        )
        path = folder / f"{world.rank}-{variant.kv_heads}.yml"
        write_base_shapes(path, shapes_of(base, 64))
        more = {"use_mup": True, "base_shapes_file": str(path), "mup_output_temp": 0.5}
        found.append(train(world, place, variant, "Adam", steps=10, **more).losses)
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE, marks=pytest.mark.slow)])
def test_layouts_learn_what_one_process_does(
    tmp_path: Path, cases: list[tuple[Layout, Variant]]
) -> None:
    ((tied, one_head),) = run_ranks(
        1, losses, [(Layout(), TIED), (Layout(), ONE_KV_HEAD)], tmp_path
    )
    assert tied[-1] < 0.9 * tied[0]
    for (place, variant), found in zip(
        cases, run_ranks(2, losses, cases, tmp_path)[0], strict=True
    ):
        expected = tied if variant is TIED else one_head
        assert found == pytest.approx(expected, rel=1e-5), (place, variant)


def config_of(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    place = str(folder / kind)
    return tiny_config(
        folder,
        train_iters=6,
        eval_iters=1,
        **{
            "base_shapes_file": str(folder / "base.yml"),
            "use_mup": True,
            "zero_optimization": {"stage": 0},
            "save": place,
            "load": place,
            **changes,
        },
    )


def use(world: World, folder: Path) -> tuple[dict[str, str], dict[str, dict[str, float]], bool]:
    """Write base shapes, run, stop, resume, reshape; what two wrong resumes say; two coordinate checks."""
    saves = {"save_base_shapes": True, "use_mup": False}
    other = saves | {"base_shapes_file": str(folder / "32.yml")}
    narrow = config_of(folder, "base", hidden_size=8, **saves)
    train_all(world, [narrow, config_of(folder, "base", **other)])
    train_all(world, [config_of(folder, "whole"), config_of(folder, "halves", exit_interval=3)])
    reshaped = {"load": str(folder / "halves"), "reshape_on_load": True}
    reshaped["zero_optimization"] = {"stage": 1}
    train_all(world, [config_of(folder, "reshaped", **reshaped), config_of(folder, "halves")])
    said = {}
    for name, wrong in {
        "standard": {"use_mup": False},
        "temperature": {"mup_attn_temp": 2},
    }.items():
        args = NeoXArgs.from_dict(config_of(folder, "whole", **wrong), world_size=1)
        with pytest.raises(CheckpointError) as error:
            load_trained_model(args, build_parts(args, world))
        said[name] = str(error.value)
    found = {}
    for name, use_mup in (("maximal update", True), ("standard", False)):
        check = {"coord_check": True, "use_mup": use_mup, "hidden_size": 32, "log_dir": str(folder)}
        check |= {
            "base_shapes_file": str(folder / "32.yml"),
            "save": None,
            "load": None,
            "init_method": "small_init",
            "gradient_clipping": 0.0,
        }
        args = NeoXArgs.from_dict(config_of(folder, "check", **check), world_size=1)
        found[name] = slopes(check_coordinates(args, world))
    return said, found, (folder / "check").exists()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("mup")
    write_tokens(folder / "data" / "tiny")
    (found,) = run_ranks(1, use, folder)
    return folder, found


@pytest.mark.ranks
def test_a_stopped_run_goes_on(used: tuple[Path, Any]) -> None:
    """Bit for bit; and on another kind of optimizer, whose groups are in another order."""
    folder, _ = used
    expected = series(folder / "whole", "train/lm_loss")
    assert len(expected) == 6
    assert series(folder / "halves", "train/lm_loss") == expected
    got = series(folder / "reshaped", "train/lm_loss")
    assert got == pytest.approx(expected[3:], rel=1e-5)


@pytest.mark.ranks
def test_weights_mean_nothing_under_another_parametrisation(used: tuple[Path, Any]) -> None:
    said = used[1][0]
    assert "was trained under another parametrisation" in said["standard"]
    assert "logits_factor: 0.25 → standard" in said["standard"]
    assert "    score_scale: 0.125 → 0.0625\n  to do: restore these keys" in said["temperature"]


@pytest.mark.ranks
def test_activations_keep_their_size_at_any_width(used: tuple[Path, Any]) -> None:
    """After four updates, from 32 to 256 wide; under the standard parametrisation they grow."""
    folder, (_, found, has_trained) = used
    mup, standard = found["maximal update"], found["standard"]
    assert mup.keys() == standard.keys()
    assert max(abs(slope) for slope in mup.values()) < 0.25, mup
    grows = [layer for layer in standard if "attention" in layer or "mlp" in layer]
    assert len(grows) == 4
    assert min(standard[layer] for layer in grows) > 0.5, standard
    assert standard["logits"] > 0.25
    table = (folder / "coord_check.csv").read_text().splitlines()
    assert table[0] == "width,step,layer,mean_abs"
    assert len(table) == 1 + 4 * 5 * 7
    assert not has_trained
