"""Runs that go on in another layout: what is trained, saved and loaded in which world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megatron.checkpointing import Reshaping, find_checkpoint, load_checkpoint, save_checkpoint
from megatron.checkpointing.reshard import reshard
from megatron.checkpointing.universal_files import FOLDER
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.pipeline_step import step_of
from megatron.training.setup import Parts, build_engine, build_model, build_parts
from megatron.training.step import StepSettings
from tests.parallel.layouts import Layout, Variant, batch_of, config_of
from tests.support.ranks import run_ranks

# Steps before the checkpoint, and after it.
BEFORE, AFTER = 4, 10
_VARIANT = Variant()


@dataclass(frozen=True)
class Leg:
    """One run: ``place`` loads ``load`` (nothing: trains from the start), saves ``save``, and goes on.

    Attributes:
        steps: to train after the save, whose losses are told.
        changes: of the configuration.
    """

    place: Layout
    load: Path | None
    save: Path
    steps: int = AFTER
    variant: Variant = _VARIANT
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Journey:
    """What came of a start, of going on from it in other layouts, and of coming back from these.

    Attributes:
        start: what was trained first.
        there, back: from the start's files, and in the layout of the start from the layout-free form of
            each of ``there``.
        losses: of each of them all after its save, by its folder.
        whole: the layout-free form of what each of them saved, by its folder.
    """

    start: Leg
    there: list[Leg]
    back: list[Leg]
    losses: dict[Path, list[float]]
    whole: dict[Path, Path]


def there_and_back(start: Leg, others: Sequence[Layout]) -> Journey:
    """Go on from ``start`` in each of ``others``, and from there in the layout of ``start`` again."""
    root = start.save.parent
    there = [
        replace(start, place=place, load=start.save, save=root / str(place)) for place in others
    ]
    whole = {leg.save: root / f"whole of {leg.save.name}" for leg in (start, *there)}
    back = [replace(start, load=whole[leg.save], save=root / f"{leg.place} back") for leg in there]
    whole |= {leg.save: root / f"whole of {leg.save.name}" for leg in back}
    losses: dict[Path, list[float]] = {}
    # In the world of the start before the others, so that worlds are few.
    own = [leg for leg in there if leg.place.ranks == start.place.ranks]
    for legs in ([start, *own], *_worlds([leg for leg in there if leg not in own]), back):
        told, *_ = run_ranks(legs[0].place.ranks, run_legs, legs, timeout=600.0)
        losses |= dict(zip((leg.save for leg in legs), told, strict=True))
        for leg in legs:
            reshard(leg.save, whole[leg.save])
    return Journey(start, there, back, losses, whole)


def _worlds(legs: Sequence[Leg]) -> list[list[Leg]]:
    """Legs of equal numbers of ranks together."""
    sizes = sorted({leg.place.ranks for leg in legs})
    return [[leg for leg in legs if leg.place.ranks == size] for size in sizes]


def run_legs(world: World, legs: Sequence[Leg]) -> list[list[float]]:
    """The losses of each leg after its save."""
    return [_run(world, leg) for leg in legs]


def _run(world: World, leg: Leg) -> list[float]:
    config = config_of(leg.place, leg.variant, "Adam") | dict(leg.changes)
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    torch.manual_seed(0)
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    engine.train()
    if leg.load is None:
        _train(engine, args, parts, range(BEFORE))
    else:
        info = find_checkpoint(leg.load, world=world)
        assert info is not None
        reshaping = Reshaping(args.model, parts.groups, allowed=True)
        state = load_checkpoint(engine, info, world=world, reshaping=reshaping)
        assert state["consumed_samples"] == 8 * BEFORE
        assert engine.global_steps == BEFORE
    save_checkpoint(
        engine,
        save_dir=leg.save,
        step=BEFORE,
        state={"consumed_samples": 8 * BEFORE, "vocab_size": parts.tokenizer.vocab_size},
        world=world,
        config_files=(),
        config_flat=args.flat(),
        layout={},
    )
    return _train(engine, args, parts, range(BEFORE, BEFORE + leg.steps))


def _train(engine: Any, args: NeoXArgs, parts: Parts, steps: range) -> list[float]:
    settings = StepSettings(
        parts.device, parts.groups, seed=1, has_dropout=False, zero_stage=args.optim.zero_stage
    )
    do_step = step_of(engine)
    return [
        do_step(
            engine, batch_of(step, parts), settings, step=step, learning_rate=args.optim.lr
        ).loss
        for step in steps
    ]


def tensors_of(root: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a layout-free checkpoint, by its path."""
    folder = root / f"global_step{BEFORE}" / FOLDER
    return {
        str(path.relative_to(folder)): torch.load(path, weights_only=True)["param"]
        for path in sorted(folder.rglob("*.pt"))
    }
