"""How far the numbers of a layout are from those of one process.

A world of processes costs seconds, a run of a tiny model tenths of one: so a world runs many layouts of
its size, one after another, and hands back plain numbers.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from megatron.runtime.world import World
from tests.parallel.combinations import Case
from tests.parallel.layouts import STEPS, Layout, Trained, train
from tests.support.ranks import run_ranks

T = TypeVar("T")
# With AdamW, and with SGD.
Pair = tuple[Trained, Trained]


@dataclass(frozen=True)
class Deviation:
    """Attributes: the largest relative one of losses and norms (AdamW), of weights (SGD), and where."""

    loss: float
    norm: float
    weight: float
    worst_weight: str

    @property
    def largest(self) -> float:
        return max(self.loss, self.norm, self.weight)


def table(found: dict[Case, Deviation]) -> str:
    """Every case with its largest deviations, a row each."""
    return "\n".join(
        f"{place!s:40}{variant!s:28}"
        + "".join(f"{value:9.1e}" for value in (off.loss, off.norm, off.weight))
        + f"  {off.worst_weight}"
        for (place, variant), off in found.items()
    )


TITLE = f"{'layout':40}{'variant':28}{'loss':>9}{'norm':>9}{'weight':>9}  of"


def alone(cases: Sequence[Case], steps: int = STEPS) -> dict[Case, Pair]:
    """What one process does with each variant in ``cases``."""
    variants = dict.fromkeys(variant for _, variant in cases)
    return trained([(Layout(), variant) for variant in variants], steps)


def deviations(
    cases: Sequence[Case], by_one: dict[Case, Pair], steps: int = STEPS
) -> dict[Case, Deviation]:
    """How far each layout is from one process (:func:`alone`) with the same variant."""
    found = trained([case for case in cases if case not in by_one], steps) | by_one
    return {case: _compare(found[case], by_one[Layout(), case[1]]) for case in cases}


def trained(cases: Sequence[Case], steps: int, timeout: float = 900.0) -> dict[Case, Pair]:
    """Each case with AdamW and with SGD, in as few worlds of its number of ranks as keep all cores busy."""
    halves = [
        half
        for ranks in sorted({place.ranks for place, _ in cases}, reverse=True)
        for first in range(2)
        if (half := [case for case in cases if case[0].ranks == ranks][first::2])
    ]
    found: dict[Case, Pair] = {}
    train_all = partial(in_one_world, steps=steps)
    for half, results in zip(halves, in_worlds(train_all, halves, timeout), strict=True):
        found |= dict(zip(half, results, strict=True))
    return found


def in_one_world(world: World, cases: Sequence[Case], steps: int = STEPS) -> list[Pair]:
    """Weights come from rank 0 alone."""
    found = [
        (
            train(world, place, variant, "Adam", steps=steps),
            train(world, place, variant, "SGD", steps=steps),
        )
        for place, variant in cases
    ]
    return found if world.is_first else []


def in_worlds(
    function: Callable[[World, list[Any]], T], parts: list[list[Any]], timeout: float
) -> list[T]:
    """What rank 0 finds for each part, whose layouts are all of one number of ranks.

    Two worlds run at a time, each on cores of its own: ranks wait for each other most of the time, and on
    one core they are woken sooner than across cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    shares = [share for share in (cores[::2], cores[1::2]) if share]
    for share in shares:
        free.put(share)

    def run(part: list[Any]) -> T:
        share = free.get()
        try:
            ranks = part[0][0].ranks
            found: list[T] = run_ranks(ranks, function, part, timeout=timeout, cores=share)
            return found[0]
        finally:
            free.put(share)

    with ThreadPoolExecutor(len(shares)) as worlds:
        return list(worlds.map(run, parts))


def _compare(case: Pair, by_one: Pair) -> Deviation:
    (adam, sgd), (adam_alone, sgd_alone) = case, by_one
    assert sgd.weights.keys() == sgd_alone.weights.keys()
    weights = {
        name: float(np.abs(sgd.weights[name] - whole).max() / np.abs(whole).max())
        for name, whole in sgd_alone.weights.items()
    }
    worst = max(weights, key=lambda name: weights[name])
    return Deviation(
        loss=_relative(adam.losses, adam_alone.losses),
        norm=_relative(adam.norms, adam_alone.norms),
        weight=weights[worst],
        worst_weight=worst,
    )


def _relative(got: Sequence[float], expected: Sequence[float]) -> float:
    return float(np.max(np.abs(np.subtract(got, expected)) / np.abs(expected)))
