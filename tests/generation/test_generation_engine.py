"""The loop around the model: cached equals recomputed, batches change nothing, ends are ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron.generation import Sample, generate
from megatron.model import GPT2Model, KVCache
from megatron.neox_arguments.sections import TextgenArgs
from megatron.tokenizer.char_level import CharLevelTokenizer
from tests.support.models import SINGLE, shake, tiny_model

VOCAB = 512
CPU = torch.device("cpu")
PROMPTS = ["a", "O Romeo, Romeo!", "", "thou art"]


def model_of(**changes: Any) -> GPT2Model:
    model = tiny_model(VOCAB, max_position_embeddings=64, **changes)
    shake(model)
    return model


def run(
    model: GPT2Model, prompts: list[str], *, seed: int = 1, batch_size: int = 16, **settings: Any
) -> list[Sample]:
    wanted = TextgenArgs(**{"maximum_tokens": 12, **settings})
    tokenizer = CharLevelTokenizer()
    return list(
        generate(model, tokenizer, prompts, wanted, seed=seed, device=CPU, batch_size=batch_size)
    )


def texts(samples: list[Sample]) -> list[str]:
    return [sample.text for sample in samples]


class Scripted(torch.nn.Module):
    """Stands in for a model: after position p it wants token ``script[p]``, whatever was read."""

    is_first = is_last = True

    def __init__(self, script: list[int], max_positions: int = 32, vocab: int = VOCAB) -> None:
        super().__init__()
        self.script, self.max_positions, self.vocab = script, max_positions, vocab
        self.groups = SINGLE

    def make_cache(self, batch: int, length: int) -> object:
        return object()

    def forward(
        self, tokens: Tensor, cache: KVCache | None, positions: Tensor, only: Tensor | None = None
    ) -> Tensor:
        last = positions[:, 0] if only is None else only
        wanted = torch.tensor([self.script[p] for p in last.tolist()])
        return torch.nn.functional.one_hot(wanted, self.vocab).float().unsqueeze(1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pos_emb": "learned"},
        {"norm": "rmsnorm", "activation": "swiglu", "num_kv_heads": 2, "no_weight_tying": True},
    ],
    ids=["neox", "gpt2", "llama"],
)
def test_cached_equals_recomputed(changes: dict[str, Any]) -> None:
    model = model_of(**changes)
    cached = run(model, PROMPTS, return_logits=True)
    again = run(model, PROMPTS, return_logits=True, recompute=True)
    assert texts(cached) == texts(again)
    assert len(set(texts(cached))) > 1
    for one, other in zip(cached, again, strict=True):
        assert one.length == 12
        difference = torch.tensor(one.logits) - torch.tensor(other.logits)
        assert difference.shape == (12, VOCAB)
        assert difference.abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("recompute", [True, False])
def test_a_text_does_not_depend_on_its_batch(recompute: bool, temperature: float) -> None:
    model = model_of()
    together = run(model, PROMPTS, recompute=recompute, temperature=temperature)
    alone = run(model, PROMPTS, recompute=recompute, temperature=temperature, batch_size=1)
    pairs = run(model, PROMPTS, recompute=recompute, temperature=temperature, batch_size=3)
    assert texts(together) == texts(alone) == texts(pairs)


def test_greedy_equals_the_argmax_of_the_plain_model() -> None:
    model = model_of().eval()
    ids = list(b"thou art")
    for _ in range(12):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert texts(run(model, ["thou art"])) == [CharLevelTokenizer().detokenize(ids[8:])]


def test_draws_repeat_under_the_seed_and_differ_between_samples() -> None:
    model = model_of()
    first = texts(run(model, ["a", "a"], temperature=1.0))
    assert texts(run(model, ["a", "a"], temperature=1.0)) == first
    assert first[0] != first[1]
    assert texts(run(model, ["a", "a"], temperature=1.0, seed=2)) != first


def test_dropout_is_off_and_the_global_generator_untouched() -> None:
    model = model_of(hidden_dropout=0.5).train()
    before = torch.get_rng_state()
    first = texts(run(model, ["a"]))
    assert texts(run(model, ["a"])) == first
    run(model, ["a"], temperature=1.0)
    assert torch.equal(before, torch.get_rng_state())


def test_stops_at_the_end_of_the_document_row_by_row() -> None:
    # Position p wants the letter A + p, and the end behind position 4.
    script = [65, 66, 67, 68, 0, *range(70, 97)]
    got = run(Scripted(script), ["xyz", "x", "vwxyz"])  # type: ignore[arg-type]
    assert texts(got) == ["CD", "ABCD", ""]
    assert [sample.finished for sample in got] == [True, True, True]
    assert [sample.length for sample in got] == [2, 4, 0]
    assert [sample.message for sample in got] == [None, None, None]


def test_maximum_tokens_counts_what_is_new() -> None:
    got = run(Scripted([65] * 32), ["x", "xyz"], maximum_tokens=3)  # type: ignore[arg-type]
    assert [(s.text, s.length, s.finished, s.message) for s in got] == [("AAA", 3, False, None)] * 2


def test_stops_at_the_last_position_and_says_so() -> None:
    # Eight positions: a text of eight tokens can be read whole; a ninth would have no position.
    model = Scripted([65] * 8, max_positions=8)
    got = run(model, ["x" * 6, "x" * 8, "xx", "x" * 9], maximum_tokens=4)  # type: ignore[arg-type]
    assert texts(got) == ["AA", "", "AAAA", ""]
    assert got[0].message is not None
    assert "8 positions" in got[0].message
    assert got[1].message is not None
    assert "8 tokens" in got[1].message
    assert got[2].message is None
    assert got[3].message is not None
    assert "9 tokens" in got[3].message


def test_more_tokens_than_a_model_has_positions_cost_nothing() -> None:
    model = Scripted([65] * 8, max_positions=8)
    (few,) = run(model, ["x"], maximum_tokens=7, temperature=1.0)  # type: ignore[arg-type]
    (all_there_are,) = run(model, ["x"], maximum_tokens=10**15, temperature=1.0)  # type: ignore[arg-type]
    assert (all_there_are.text, all_there_are.length) == (few.text, 7)
    assert "8 positions" in str(all_there_are.message)


def test_where_no_prompt_fits_nothing_is_computed() -> None:
    (got,) = run(Scripted([], max_positions=2), ["xxx"], maximum_tokens=4)  # type: ignore[arg-type]
    assert (got.text, got.length) == ("", 0)
    assert "the prompt has 3 tokens" in str(got.message)


class Padded(CharLevelTokenizer):
    """A vocabulary that the model's rows exceed."""

    @property
    def vocab_size(self) -> int:
        return 100


def test_rows_beyond_the_vocabulary_are_never_chosen() -> None:
    # It wants 300 every time; of all others, equally unwanted, greedy choice takes the first: the end.
    wanting: Any = Scripted([300] * 32)
    settings = TextgenArgs(maximum_tokens=8, return_logits=True)
    (got,) = generate(wanting, Padded(), ["a"], settings, seed=1, device=CPU)
    assert (got.text, got.finished) == ("", True)
    # At this temperature all 512 rows are equally likely; an id from 100 on cannot be detokenized.
    hot = TextgenArgs(maximum_tokens=8, temperature=1e6, return_logits=True)
    samples = list(generate(wanting, Padded(), ["a"] * 8, hot, seed=1, device=CPU))
    assert sum(sample.length for sample in samples) > 40
    assert {len(row) for sample in samples for row in sample.logits or []} == {100}


def test_an_empty_prompt_starts_behind_an_end_of_document() -> None:
    model = model_of()
    with torch.no_grad():
        logits = model.eval()(torch.tensor([[0]]))[0, -1]
    (got,) = run(model, [""], maximum_tokens=1, return_logits=True)
    torch.testing.assert_close(torch.tensor(got.logits), logits.unsqueeze(0), rtol=0, atol=1e-5)


class Spaced(CharLevelTokenizer):
    """Drops a blank at the start of a text, as tokenizers of the Llama family do."""

    def _decode(self, ids: list[int]) -> str:
        return super()._decode(ids).removeprefix(" ")


def test_text_reads_on_behind_the_prompt() -> None:
    script = [*range(65, 70), *range(32, 60)]
    settings = TextgenArgs(maximum_tokens=2)
    model = Scripted([ord(" "), ord("b"), *script])
    (got,) = generate(model, Spaced(), ["a"], settings, seed=1, device=CPU)  # type: ignore[arg-type]
    assert got.text == " b"


def test_a_character_that_a_prompt_cuts_in_two_does_not_break_the_text() -> None:
    class HalfPrompt(CharLevelTokenizer):
        def _encode(self, texts: Any) -> list[list[int]]:
            return [[0xC3] for _ in texts]  # the first half of é

    model = Scripted([0xA9, ord("t"), *[0] * 8])
    settings = TextgenArgs(maximum_tokens=2)
    (got,) = generate(model, HalfPrompt(), ["?"], settings, seed=1, device=CPU)  # type: ignore[arg-type]
    assert got.text.endswith("t")


def test_fields_are_those_of_gpt_neox() -> None:
    names = [field.name for field in dataclasses.fields(Sample)]
    assert names[:6] == ["context", "text", "length", "finished", "message", "duration_seconds"]


def test_half_precision_model_generates_the_same_cached() -> None:
    model = model_of().to(torch.bfloat16)
    one, other = (run(model, ["thou"], recompute=r, return_logits=True)[0] for r in (True, False))
    assert one.logits is not None
    assert other.logits is not None
    # The first token comes from the same computation but for the mask's kernel.
    torch.testing.assert_close(
        torch.tensor(one.logits[0]), torch.tensor(other.logits[0]), rtol=0.05, atol=0.1
    )
