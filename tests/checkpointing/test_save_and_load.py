"""Real DeepSpeed engines in two processes: exact resume, and failures that leave nothing behind."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from megatron.checkpointing import (
    deepspeed_files,
    find_checkpoint,
    load_checkpoint,
    load_weights,
)
from megatron.runtime import durable
from megatron.runtime.world import World
from tests.checkpointing.engines import (
    TinyNet,
    error_of,
    make_engine,
    save,
    train,
    weights_of,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.ranks

FORMS = {"fp32 stage 0": (0, False), "fp32 stage 1": (1, False), "bf16 stage 1": (1, True)}


def listing(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


@contextmanager
def disk_full_for(world: World, name_part: str, ranks: tuple[int, ...] = (0, 1)) -> Any:
    """Writing to any file whose name holds ``name_part`` stops with ENOSPC after ten bytes."""
    real = durable.new_file

    @contextmanager
    def new_file(path: Path) -> Any:
        with real(path) as file:
            if name_part not in path.name or world.rank not in ranks:
                yield file
                return

            class Full:
                def write(self, content: Any) -> int:
                    file.write(bytes(content)[:10])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                def flush(self) -> None: ...

            yield Full()

    with (
        mock.patch.object(durable, "new_file", new_file),
        mock.patch.object(deepspeed_files, "new_file", new_file),
        mock.patch("megatron.checkpointing.publishing.new_file", new_file),
    ):
        yield


def resume_exactly(world: World, root: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, (stage, bf16) in FORMS.items():
        place = root / name.replace(" ", "-")
        engine = make_engine(stage, bf16)
        train(engine, world, 0, 3)
        save(engine, world, place, 3)
        expected = train(engine, world, 3, 3)

        fresh = make_engine(stage, bf16, seed=2)
        info = find_checkpoint(place, world=world)
        state = load_checkpoint(fresh, info, world=world)
        seen[name] = {
            "state": state,
            "steps": (info.step, fresh.global_steps),
            "expected": expected,
            "resumed": train(fresh, world, 3, 3),
            "files": listing(place),
        }
    return seen


def weights_alone(world: World, root: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    trained = make_engine(1, True)
    train(trained, world, 0, 3)
    save(trained, world, root / "finetune", 3)
    info = find_checkpoint(root / "finetune", world=world)
    # An engine with a learning rate of zero writes its fp32 copy back at the first step.
    for name, (stage, bf16) in FORMS.items():
        still = make_engine(stage, bf16, seed=2, lr=0.0)
        load_weights(still.module, info, engine=still)
        before = weights_of(still.module)
        train(still, world, 0, 1)
        seen[name] = (weights_of(trained.module) == before, weights_of(still.module) == before)
    # And from an fp32 file into a bf16 module: one rounding.
    exact = make_engine(0, False)
    train(exact, world, 0, 3)
    save(exact, world, root / "fp32", 3)
    half = TinyNet(seed=2).to(torch.bfloat16)
    load_weights(half, find_checkpoint(root / "fp32"))
    rounded = weights_of(exact.module.to(torch.bfloat16))
    seen["fp32 into bf16"] = (rounded == weights_of(half), True)
    return seen


def without_optimizer(world: World, root: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, (stage, bf16) in FORMS.items():
        place = root / f"lean-{name.replace(' ', '-')}"
        engine = make_engine(stage, bf16)
        train(engine, world, 0, 2)
        folder = save(engine, world, place, 2, no_save_optim=True)
        # The engine itself must be as before: it saves its optimizer again at the next save.
        save(engine, world, place, 3)
        info = find_checkpoint(place, 2, world=world)
        fresh = make_engine(stage, bf16, seed=2)
        refused = error_of(lambda: load_checkpoint(fresh, info, world=world))  # noqa: B023
        load_checkpoint(fresh, info, world=world, load_optim=False)
        loaded = weights_of(fresh.module)
        train(fresh, world, 2, 1)
        content = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=True)
        seen[name] = {
            "refused": refused,
            "equal": loaded == weights_of(engine.module),
            "moves": loaded != weights_of(fresh.module),
            "optimizer in file": content["optimizer"],
            "shards": [f for f in listing(folder) if "optim_states" in f],
            "shards later": [f for f in listing(place / "global_step3") if "optim_states" in f],
        }
    return seen


def flip_bytes(shard: Path, world: World) -> None:
    """The right size and wrong bytes."""
    world.barrier()
    if world.rank == 0:
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 255
        content[len(content) // 3] ^= 255
        shard.write_bytes(content)
    world.barrier()


def refusals(world: World, root: Path) -> dict[str, str]:
    engine = make_engine(1)
    train(engine, world, 0, 1)
    save(engine, world, root / "stage1", 1)
    info = find_checkpoint(root / "stage1", world=world)
    seen = {
        "stage": error_of(lambda: load_checkpoint(make_engine(0), info, world=world)),
        "precision": error_of(lambda: load_checkpoint(make_engine(1, True), info, world=world)),
    }
    # One rank's shard is damaged: both ranks stop with rank 1's words.
    shard = info.path / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    flip_bytes(shard, world)
    assert find_checkpoint(root / "stage1", world=world) == info
    seen["flipped"] = error_of(lambda: load_checkpoint(make_engine(1), info, world=world))
    world.barrier()
    if world.rank == 0:
        shard.write_bytes(shard.read_bytes()[:-100])
    world.barrier()
    seen["cut"] = error_of(lambda: find_checkpoint(root / "stage1", world=world))
    seen["flipped, stage 3"] = damaged_stage_3(world, root / "stage3")
    return seen


def damaged_stage_3(world: World, place: Path) -> str:
    """Here DeepSpeed's loader ends with a collective, which the rank of the broken shard does not reach."""
    engine = make_engine(3)
    train(engine, world, 0, 1)
    save(engine, world, place, 1)
    info = find_checkpoint(place, world=world)
    flip_bytes(info.path / "zero_pp_rank_1_mp_rank_00_optim_states.pt", world)
    fresh = make_engine(3, seed=2)
    assert fresh.optimizer.persistent_parameters, "these are what the collective gathers"
    return error_of(lambda: load_checkpoint(fresh, info, world=world))


def full_disks(world: World, root: Path) -> dict[str, Any]:
    engine = make_engine(1)
    place = root / "full"
    train(engine, world, 0, 1)
    save(engine, world, place, 1)
    before = {name: (place / name).read_bytes() for name in listing(place)}
    train(engine, world, 1, 1)
    seen: dict[str, Any] = {}
    for name, ranks in {
        "zero_pp_rank_1": (1,),
        "mp_rank_00_model": (0,),
        "zero_to_fp32": (0,),
        "manifest.json": (0,),
        "effective_config": (0,),
        ".tmp-latest": (0,),
    }.items():
        with disk_full_for(world, name, ranks):
            text = error_of(lambda: save(engine, world, place, 2))
        world.barrier()
        after = {name: (place / name).read_bytes() for name in listing(place)}
        seen[name] = (text, after == before, sorted(os.listdir(place)))
        world.barrier()
    save(engine, world, place, 2)
    seen["afterwards"] = find_checkpoint(place, world=world).step
    return seen


def life_of_a_root(world: World, root: Path) -> dict[str, Any]:
    """Leftovers, folders in the way, a step saved twice, retention."""
    engine = make_engine(1)
    place = root / "life"
    if world.is_first:
        (place / ".tmp-global_step9" / "global_step9").mkdir(parents=True)
        (place / ".tmp-global_step9" / "global_step9" / "mp_rank_00_model_states.pt").touch()
        (place / ".tmp-latest").write_text("global_st")
        (place / "global_step1").mkdir()
        (place / "global_step1" / "somebodys.pt").write_bytes(b"precious")
        (place / "global_step77").mkdir()
    world.barrier()
    train(engine, world, 0, 1)
    save(engine, world, place, 1)
    seen: dict[str, Any] = {"first": sorted(os.listdir(place))}
    seen["aside"] = (place / "global_step1.aside1" / "somebodys.pt").read_bytes()
    save(engine, world, place, 1, state={"consumed_samples": 5})
    seen["second"] = sorted(os.listdir(place))
    seen["state"] = find_checkpoint(place, 1, world=world).state
    for step in (2, 3, 4):
        save(engine, world, place, step, keep_last=2)
    seen["kept"] = sorted(os.listdir(place))
    # Gone back to step 2 in a run that had reached 4: nothing later is removed, 2 least of all.
    save(engine, world, place, 2, keep_last=1)
    seen["gone back"] = sorted(os.listdir(place))
    seen["latest"] = (place / "latest").read_text()
    seen["pattern"] = error_of(lambda: save(engine, world, root / "a[1]", 1))
    return seen


def all_cases(world: World, root: str) -> dict[str, Any]:
    cases = (resume_exactly, weights_alone, without_optimizer, refusals, full_disks, life_of_a_root)
    return {case.__name__: case(world, Path(root)) for case in cases}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(2, all_cases, str(tmp_path_factory.mktemp("checkpoints")))


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_run_is_equal_to_the_last_bit(ranks: list[Any], form: str) -> None:
    for seen in (rank["resume_exactly"][form] for rank in ranks):
        assert seen["resumed"] == seen["expected"]
        assert len(set(seen["expected"])) == 3
        assert seen["steps"] == (3, 3)
        assert seen["state"] == {"consumed_samples": 12, "loss_sum": 0.30000000000000004}


def test_the_files_of_a_checkpoint(ranks: list[Any]) -> None:
    common = {
        "global_step3/configs/effective_config.json",
        "global_step3/configs/run-2.yml",
        "global_step3/configs/run.yml",
        "global_step3/manifest.json",
        "global_step3/mp_rank_00_model_states.pt",
        "latest",
    }
    scripts = {"global_step3/zero_to_fp32.py", "global_step3/zero_to_torch.py"}
    files = {form: set(ranks[0]["resume_exactly"][form]["files"]) for form in FORMS}
    assert files["fp32 stage 0"] == common
    assert files["fp32 stage 1"] == common | scripts | {
        f"global_step3/zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1)
    }
    assert files["bf16 stage 1"] == common | scripts | {
        f"global_step3/bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1)
    }


@pytest.mark.parametrize("case", [*FORMS, "fp32 into bf16"])
def test_loaded_weights_survive_the_first_step(ranks: list[Any], case: str) -> None:
    assert [rank["weights_alone"][case] for rank in ranks] == [(True, True)] * 2


@pytest.mark.parametrize("form", FORMS)
def test_without_the_optimizer(ranks: list[Any], form: str) -> None:
    seen = ranks[1]["without_optimizer"][form]
    assert "no_save_optim" in seen["refused"]
    assert "no_load_optim: true" in seen["refused"]
    assert seen["equal"]
    assert seen["moves"]
    assert seen["optimizer in file"] is None
    assert seen["shards"] == []
    assert len(seen["shards later"]) == (0 if form == "fp32 stage 0" else 2)


def test_what_does_not_fit_is_refused_everywhere(ranks: list[Any]) -> None:
    for seen in (rank["refusals"] for rank in ranks):
        assert "zero_stage 1, this run has 0" in seen["stage"]
        assert "precision fp32, this run has bfloat16" in seen["precision"]
        assert seen["flipped"].startswith("rank 1 on ")
        assert seen["flipped, stage 3"].startswith("rank 1 on ")
        assert "zero_pp_rank_1_mp_rank_00_optim_states.pt has" in seen["cut"]
        assert "the manifest says" in seen["cut"]


def test_a_full_disk_leaves_everything_as_it_was(ranks: list[Any]) -> None:
    for seen in (rank["full_disks"] for rank in ranks):
        assert seen.pop("afterwards") == 2
        assert len(seen) == 6
        for name, (text, unchanged, names) in seen.items():
            assert unchanged, name
            assert names == ["global_step1", "latest"], name
            assert "No space left on device" in text
            assert name.removeprefix(".tmp-") in text
            assert "still whole: global_step1" in text
            assert len(text.splitlines()) <= 10
        assert "rank 1 on" in seen["zero_pp_rank_1"][0]


def test_the_life_of_a_checkpoint_root(ranks: list[Any]) -> None:
    seen = ranks[0]["life_of_a_root"]
    first = ["global_step1", "global_step1.aside1", "global_step77", "latest"]
    assert seen["first"] == first
    assert seen["aside"] == b"precious"
    assert seen["second"] == first
    assert seen["state"] == {"consumed_samples": 5}
    foreign = ["global_step1.aside1", "global_step77", "latest"]
    assert seen["kept"] == sorted(["global_step3", "global_step4", *foreign])
    assert seen["gone back"] == sorted(["global_step2", "global_step3", "global_step4", *foreign])
    assert seen["latest"] == "global_step2"
    assert "[ * ?" in seen["pattern"]
