"""Protects that each key of document boundaries reaches the model, and nothing does without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron.data.boundaries import Boundaries, DocumentStarts
from megatron.data.step_batch import StepBatch
from megatron.training.forward import logits_of

TOKENS = torch.arange(2 * 2 * 7).view(2, 2, 7)
BATCH = StepBatch(TOKENS, torch.ones(2, 2, 6, dtype=torch.bool), first_sample=0, num_samples=4)


def asked(batch: StepBatch, micro: int) -> dict[str, Any]:
    """What the model is given beside the tokens."""
    found: list[dict[str, Any]] = []

    def model(tokens: Tensor, **options: Any) -> Tensor:
        assert torch.equal(tokens, TOKENS[micro, :, :-1])
        found.append(options)
        return tokens

    logits_of(model, batch, micro)
    return found[0]


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("attention", [True, False])
def test_a_key_is_what_it_asks_for(positions: bool, attention: bool) -> None:
    starts = [[0], [0, 6], [0, 4], [0, 1, 3]]
    documents = DocumentStarts.collect(starts, (2, 2), 6, Boundaries(positions, attention))
    batch = replace(BATCH, documents=documents)
    first, second = asked(batch, 0), asked(batch, 1)
    wanted = {"position_ids": positions, "segments": attention}
    assert set(first) == set(second) == {name for name, is_wanted in wanted.items() if is_wanted}
    if positions:
        assert first["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
        assert second["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 0, 1, 0, 1, 2]]
    if attention:
        assert first["segments"].lengths == (6, 6)
        assert second["segments"].lengths == (4, 2, 1, 2, 3)


def test_without_boundaries_there_are_tokens_alone() -> None:
    assert asked(BATCH, 1) == {}
