"""Protects the step in a pipeline: what it sends, who hears what, and no update from what is no number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.step_batch import StepBatch
from megatron.errors import TrainingError
from megatron.runtime.world import World
from megatron.training.pipeline_step import pipeline_step
from megatron.training.setup import model_of
from megatron.training.step import StepResult
from tests.support.engines_for_steps import build
from tests.support.ranks import run_ranks
from tests.support.tiny import tiny_config

SEQ, MICRO, ACCUMULATION, WIDTH = 16, 2, 4, 32
ROWS = 512


def config_of(folder: Path, stage: int, **changes: Any) -> dict[str, Any]:
    return tiny_config(
        folder,
        pipe_parallel_size=2,
        optimizer={"type": "SGD", "params": {"lr": 0.5}},
        zero_optimization={"stage": stage},
        train_batch_size=None,
        gradient_accumulation_steps=ACCUMULATION,
        **changes,
    )


def batch(documents: DocumentStarts | None = None) -> StepBatch:
    tokens = torch.randint(
        0, 256, (ACCUMULATION, MICRO, SEQ + 1), generator=torch.Generator().manual_seed(3)
    )
    mask = torch.ones(ACCUMULATION, MICRO, SEQ, dtype=torch.bool)
    return StepBatch(tokens, mask, first_sample=0, num_samples=8, documents=documents)


def sent_in_a_step(world: World, config: dict[str, Any]) -> Counter[str]:
    """Numbers that this rank sends to a neighbour, and puts into sums, by their type, in a second step."""
    engine, settings = build(world, config)
    documents = None
    if config.get("reset_attention_mask"):
        boundaries = Boundaries(reset_position_ids=False, reset_attention_mask=True)
        starts = [[0, 5 + row] for row in range(ACCUMULATION * MICRO)]
        documents = DocumentStarts.collect(starts, (ACCUMULATION, MICRO), SEQ, boundaries)
    pipeline_step(engine, batch(documents), settings, step=0, learning_rate=0.1)
    sent: Counter[str] = Counter()
    send, all_reduce = dist.send, dist.all_reduce

    def counted_send(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        sent[f"sent {tensor.dtype}"] += tensor.numel()
        return send(tensor, *args, **options)

    def counted_sum(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        shared = dist.get_world_size(options.get("group")) > 1
        if shared and tensor.numel() > 10:  # more than losses, norms and flags
            sent["summed"] += tensor.numel()
        return all_reduce(tensor, *args, **options)

    with (
        mock.patch.object(dist, "send", counted_send),
        mock.patch.object(dist, "all_reduce", counted_sum),
    ):
        pipeline_step(engine, batch(documents), settings, step=1, learning_rate=0.1)
    return sent


def sent_by_kind(world: World, configs: list[dict[str, Any]]) -> list[Counter[str]]:
    return [sent_in_a_step(world, config) for config in configs]


@pytest.mark.ranks
def test_as_many_numbers_travel_as_the_closed_form_says(tmp_path: Path) -> None:
    """Hidden states of each micro-batch one way, their gradients the other, and a tied table's gradient.

    Documents that are kept apart add the places of tokens, one way.
    """
    apart = {"reset_attention_mask": True}
    configs = [
        config_of(tmp_path, 0),
        config_of(tmp_path, 0, no_weight_tying=False),
        config_of(tmp_path, 1, **apart),
    ]
    first, last = run_ranks(2, sent_by_kind, configs)
    states = ACCUMULATION * MICRO * SEQ * WIDTH
    floats = "sent torch.float32"
    assert first[0] == last[0] == {floats: states}
    assert first[1] == last[1] == {floats: states, "summed": ROWS * WIDTH}
    assert first[2] == {floats: states, "sent torch.int32": ACCUMULATION * MICRO * SEQ}
    assert last[2] == {floats: states}


def broken_steps(world: World, config: dict[str, Any]) -> list[tuple[str, bool]]:
    """For a bad loss and a bad gradient of one stage: the error, and whether the weights stayed."""
    found = []
    for broken in ("loss", "gradient"):
        engine, settings = build(world, config)
        model = model_of(engine)
        if broken == "loss" and model.is_last:
            with torch.no_grad():
                model.sequential[-1].final_linear.weight[0, 0] = float("inf")
        if broken == "gradient" and model.is_first:
            table = model.sequential[0].word_embeddings.weight
            table.register_hook(lambda gradient: gradient * float("nan"))
        before = [p.detach().clone() for p in model.parameters()]
        try:
            pipeline_step(engine, batch(), settings, step=6, learning_rate=0.1)
            said = "nothing"
        except TrainingError as error:
            said = str(error).splitlines()[0]
        same = all(torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
        found.append((said, same))
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("stage", [0, 1])
def test_what_is_no_number_stops_all_stages_before_the_update(tmp_path: Path, stage: int) -> None:
    for rank in run_ranks(2, broken_steps, config_of(tmp_path, stage)):
        (loss, same_loss), (gradient, same_gradient) = rank
        assert loss.startswith("step 7: the loss is "), loss
        assert gradient.startswith("step 7: the gradient norm is "), gradient
        assert same_loss
        assert same_gradient


def stopped_meanwhile(world: World, config: dict[str, Any]) -> StepResult:
    engine, settings = build(world, config)
    asked: list[object] = []
    if world.rank == 0:
        model_of(engine).register_forward_hook(lambda *_: asked.append("by a signal"))
    return pipeline_step(
        engine, batch(), settings, step=0, learning_rate=0.1, stop_asked=lambda: bool(asked)
    )


@pytest.mark.ranks
def test_a_stop_of_one_stage_is_heard_by_all(tmp_path: Path) -> None:
    first, last = run_ranks(2, stopped_meanwhile, config_of(tmp_path, 0))
    assert first == last
    assert first.stop
