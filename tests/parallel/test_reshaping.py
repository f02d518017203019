"""Protects that a run goes on in any layout as if it had always had it, and comes back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from megatron.checkpointing.manifest import read_manifest
from megatron.checkpointing.reshard import reshard
from tests.parallel.layouts import Layout, Variant
from tests.parallel.reshaping import BEFORE, Journey, Leg, run_legs, tensors_of, there_and_back
from tests.support.ranks import run_ranks

TIED = Variant(kv_heads=2, untied=False)
# In bytes a tokenizer's 256 ids need no padding; four ranks that share the embedding do.
PADDED = "word_embeddings", "final_linear"


def require_same_state(journey: Journey) -> None:
    """All hold the same to the last bit: whoever came back, everything."""
    whole = journey.whole
    ours = tensors_of(whole[journey.start.save])
    manifest = read_manifest(whole[journey.start.save] / f"global_step{BEFORE}")
    assert manifest is not None
    for leg in (*journey.there, *journey.back):
        theirs = tensors_of(whole[leg.save])
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            same_rows = theirs[name]
            if leg in journey.there and any(part in name for part in PADDED):
                same_rows = same_rows[: len(tensor)]
            assert torch.equal(tensor, same_rows), f"{name} of {leg.save.name}"
        other = read_manifest(whole[leg.save] / f"global_step{BEFORE}")
        assert other is not None
        assert other.state == manifest.state
        if leg in journey.back:
            assert other.whole == manifest.whole


def require_same_losses(journey: Journey) -> None:
    reference = journey.losses[journey.start.save]
    assert reference[0] > reference[-1]
    for losses in journey.losses.values():
        assert losses == pytest.approx(reference, rel=1e-6)


@pytest.mark.slow
@pytest.mark.ranks
def test_there_and_back_between_two_ranks(tmp_path: Path) -> None:
    others = [Layout(data=2, zero=3), Layout(pipe=2, zero=1), Layout(model=2, zero=0)]
    journey = there_and_back(Leg(Layout(model=2, zero=1), None, tmp_path / "start"), others)
    require_same_losses(journey)
    require_same_state(journey)


@pytest.mark.slow
@pytest.mark.ranks
def test_from_three_dimensions_into_each_other_layout(tmp_path: Path) -> None:
    others = [
        Layout(),
        Layout(model=4),
        Layout(pipe=4),
        Layout(pipe=4, zero=1),
        Layout(data=4, zero=1),
        Layout(data=4, zero=3),
        Layout(model=2, sequence=True, data=2, zero=3),
        Layout(model=2, context=2, zero=2),
        Layout(model=4, data=2, zero=3),
        Layout(pipe=2, data=4, zero=0),
    ]
    start = Leg(Layout(pipe=2, model=2, data=2, zero=1), None, tmp_path / "start", variant=TIED)
    journey = there_and_back(start, others)
    require_same_losses(journey)
    require_same_state(journey)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize(
    "start", [Layout(pipe=2, data=2), Layout(model=2, data=2, zero=3)], ids=str
)
def test_from_other_optimizers(tmp_path: Path, start: Layout) -> None:
    others = [
        Layout(),
        Layout(pipe=2, model=2, zero=1),
        Layout(data=2, zero=3),
        Layout(data=2, zero=2, offload=("optimizer",)),
        Layout(data=2, zero=3, offload=("optimizer", "param")),
    ]
    journey = there_and_back(Leg(start, None, tmp_path / "start"), others)
    require_same_losses(journey)
    require_same_state(journey)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "data_types": {"grad_accum_dtype": "fp32"}},
        {"precision": "fp16"},
    ],
    ids=str,
)
def test_in_half_precision_the_exact_weights_travel(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    others = [
        Layout(zero=1),
        Layout(data=2, zero=2),
        Layout(data=2, zero=3),
        Layout(pipe=2, zero=1),
    ]
    start = Leg(Layout(model=2, zero=1), None, tmp_path / "start", changes=tuple(changes.items()))
    journey = there_and_back(start, others)
    require_same_state(journey)
    reference = journey.losses[start.save]
    for losses in journey.losses.values():
        assert losses == pytest.approx(reference, rel=2e-2)


@pytest.mark.slow
@pytest.mark.ranks
def test_what_all_layers_share_travels_once(tmp_path: Path) -> None:
    options = (("pos_emb", "rpe"), ("rpe_num_buckets", 8), ("rpe_max_distance", 12))
    start = Leg(Layout(model=2, zero=1), None, tmp_path / "start", variant=Variant(options=options))
    others = [Layout(model=2, sequence=True), Layout(data=2, zero=3), Layout(pipe=1)]
    journey = there_and_back(start, others)
    require_same_losses(journey)
    require_same_state(journey)
    whole = tensors_of(journey.whole[start.save])
    tables = [name for name in whole if "rpe" in name]
    assert [name.partition("/")[0] for name in tables] == ["sequential.2.attention.rpe.weight"] * 3


@pytest.mark.slow
@pytest.mark.ranks
def test_into_as_many_stages_with_other_layers(tmp_path: Path) -> None:
    changes = (("pipe_partition_method", "type:NormPipe|ParallelLinearPipe"),)
    start = Leg(Layout(pipe=2), None, tmp_path / "start")
    other = Leg(Layout(pipe=2), start.save, tmp_path / "other", changes=changes)
    (expected, found), _ = run_ranks(2, run_legs, [start, other])
    assert found == pytest.approx(expected, rel=1e-6)
    stages = [
        leg.save / f"global_step{BEFORE}" / "mp_rank_00_model_states.pt" for leg in (start, other)
    ]
    assert stages[0].stat().st_size != stages[1].stat().st_size


@pytest.mark.slow
@pytest.mark.ranks
def test_into_cuts_that_are_not_even(tmp_path: Path) -> None:
    start = Leg(Layout(model=2, zero=1), None, tmp_path / "start", steps=0)
    run_ranks(2, run_legs, [start])
    # Groups of some parameters each, which, small as they are, no rank lets go of.
    changes: dict[str, Any] = {"zero_optimization": {"stage": 3, "sub_group_size": 5000}}
    changes |= {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1}
    thirds = Leg(
        Layout(data=3, zero=3),
        start.save,
        tmp_path / "thirds",
        steps=0,
        changes=tuple(changes.items()),
    )
    run_ranks(3, run_legs, [thirds])
    for leg in (start, thirds):
        reshard(leg.save, tmp_path / f"{leg.save.name} whole")
    ours, theirs = (tensors_of(tmp_path / f"{leg.save.name} whole") for leg in (start, thirds))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
