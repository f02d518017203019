"""Protects the numbers of a score: against a model whose loss is known by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from megatron.evaluation.perplexity import Score, score_documents
from megatron.evaluation.windows import Windows
from megatron.mpu import ParallelGroups
from megatron.runtime.world import World
from megatron.tokenizer import build_tokenizer
from tests.evaluation.test_windows import Lists
from tests.support.ranks import run_ranks

TEXT = "Wörds, wörds, wörds."
TOKENIZER = build_tokenizer("CharLevelTokenizer", None, None)


class Uniform(nn.Module):
    """Every id is as likely as any other: the loss is log(vocabulary) whatever the text."""

    is_first = is_last = reads_data = True

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 512)


def score(world: World) -> Score:
    ids = TOKENIZER.tokenize(TEXT)
    windows = Windows(Lists([*ids, TOKENIZER.eod], ids), 0, 2, seq_length=7)
    return score_documents(
        Uniform(),
        windows,
        tokenizer=TOKENIZER,
        groups=ParallelGroups(world),
        device=torch.device("cpu"),
        micro_batch_size=3,
    )


def test_of_a_uniform_model() -> None:
    found = score(World())
    size = len(TEXT.encode())
    assert (
        found.tokens == 2 * size + 1 - 1
    )  # two texts and an end of document, less the first token
    assert found.bytes == 2 * size - 1
    assert found.loss == pytest.approx(math.log(512), rel=1e-6)
    assert found.perplexity == pytest.approx(512, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(9 * found.tokens / found.bytes, rel=1e-6)
    assert found.nats_per_byte == pytest.approx(found.bits_per_byte * math.log(2), rel=1e-12)


@pytest.mark.ranks
def test_two_ranks_find_the_same() -> None:
    assert [vars(s) for s in run_ranks(2, score)] == [
        pytest.approx(vars(score(World())), rel=1e-12)
    ] * 2


def test_a_hopeless_model_has_an_infinite_perplexity() -> None:
    assert Score.of(8000.0, tokens=10, num_bytes=0).perplexity == math.inf
    assert math.isnan(Score.of(8000.0, tokens=10, num_bytes=0).bits_per_byte)


def test_nothing_to_score_is_an_error() -> None:
    windows = Windows(Lists([1]), 0, 1, seq_length=4)
    with pytest.raises(ValueError, match="nothing to predict"):
        score_documents(
            Uniform(),
            windows,
            tokenizer=TOKENIZER,
            groups=ParallelGroups(World()),
            device=torch.device("cpu"),
            micro_batch_size=1,
        )
