"""Protects that a run goes on in any layout as if it had always had it, and comes back unchanged."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import torch

from megatron.checkpointing.manifest import read_manifest
from megatron.checkpointing.reshard import reshard
from tests.parallel.layouts import Layout
from tests.parallel.reshaping import BEFORE, Leg, run_legs, tensors_of
from tests.support.ranks import run_ranks

START = Layout(model=2, zero=1)
OTHERS = [
    Layout(data=2, zero=2),
    Layout(data=2, zero=3),
    Layout(data=2, zero=0),
    Layout(model=2, zero=0),
]


def require_equal(one: Path, other: Path) -> None:
    """Two layout-free checkpoints are the same to the last bit."""
    ours, theirs = tensors_of(one), tensors_of(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    manifests = [read_manifest(root / f"global_step{BEFORE}") for root in (one, other)]
    assert manifests[0].whole == manifests[1].whole
    assert manifests[0].state == manifests[1].state


@pytest.mark.ranks
def test_there_and_back_between_two_ranks(tmp_path: Path) -> None:
    start = Leg(START, None, tmp_path / "start")
    there = [Leg(place, start.save, tmp_path / str(place)) for place in OTHERS]
    back = [Leg(START, leg.save, tmp_path / f"{leg.place} back") for leg in there]
    alike, _ = run_ranks(2, run_legs, [start, *there, *back])
    reference = alike[0]
    assert reference[0] > reference[-1]
    for losses in alike[1:]:
        assert losses == pytest.approx(reference, rel=1e-6)
    whole = [tmp_path / f"whole-{number}" for number in range(1 + 2 * len(there))]
    for leg, folder in zip([start, *there, *back], whole, strict=True):
        reshard(leg.save, folder)
    for one, other in combinations(whole, 2):
        require_equal(one, other)
