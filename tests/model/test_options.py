"""Protects what each option of the model computes: its formula, its cache, and its rules of size.

The reference is :mod:`tests.model.plain_decoder`; models that transformers has are compared with it in
``test_hf_parity.py``.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megatron.model import GPT2Model, Segments, positions_within
from megatron.model.attention_kernels import Scores, attend_causally
from tests.model import plain_decoder
from tests.model.options import OPTIONS, Option
from tests.support.models import shake, tiny_model

VOCAB = 64
TOKENS = torch.randint(0, VOCAB, (2, 16), generator=torch.Generator().manual_seed(4))
each_option = pytest.mark.parametrize("option", OPTIONS, ids=str)


def shaken(option: Option) -> GPT2Model:
    model = tiny_model(VOCAB, **option.changes)
    shake(model)
    return model.eval()


def weighted(logits: Tensor) -> Tensor:
    return (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).mean()


@each_option
def test_logits_and_gradients_are_those_of_the_formula(option: Option) -> None:
    model = shaken(option)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    logits = model(TOKENS)
    expected = plain_decoder.logits(model.model_args, weights, TOKENS)
    # Logits that are all but zero would agree whatever the model computed.
    assert expected.std() > 0.05
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-5)
    weighted(logits).backward()
    weighted(expected).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(
            parameter.grad,
            weights[name].grad,
            rtol=2e-4,
            atol=2e-6,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@each_option
@torch.no_grad()
def test_a_cache_changes_nothing(option: Option) -> None:
    """A prompt of five tokens and of three, then one token at a time."""
    model = shaken(option)
    whole = model(TOKENS)
    cache = model.make_cache(2, 16)
    lengths = torch.tensor([5, 3])
    prompt = torch.arange(5).expand(2, 5)
    got = model(TOKENS[:, :5], cache, prompt)
    torch.testing.assert_close(got[0], whole[0, :5], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(got[1, :3], whole[1, :3], rtol=1e-4, atol=2e-5)
    rows = torch.arange(2)
    for step in range(11):
        places = lengths + step
        got = model(TOKENS[rows, places].unsqueeze(1), cache, places.unsqueeze(1))
        torch.testing.assert_close(got[:, 0], whole[rows, places], rtol=1e-4, atol=2e-5)


@each_option
def test_parameters_are_counted(option: Option) -> None:
    model = tiny_model(VOCAB, **option.changes)
    counted = model.model_args.layer_parameter_counts(VOCAB)
    assert counted == tuple(
        sum(p.numel() for p in layer.parameters()) for layer in model.sequential
    )
    assert model.model_args.parameter_count(VOCAB) == sum(p.numel() for p in model.parameters())


@each_option
def test_options_change_what_is_computed(option: Option) -> None:
    """Where the parameters are the same, the numbers are not."""
    model, other = shaken(option), tiny_model(VOCAB, **option.beside)
    shake(other)
    same_value = model.model_args == other.model_args
    same_names = model.state_dict().keys() == other.state_dict().keys()
    if same_names and not same_value and not _is_another_name(option):
        assert not torch.allclose(model(TOKENS), other.eval()(TOKENS), atol=1e-4)


def _is_another_name(option: Option) -> bool:
    """Whether the value says in words what the default is."""
    return option in (
        ("num_kv_heads", 4, {}),
        ("attention_config", ((("global",), 2),), {}),
        ("attention_config", ((("flash",), 2),), {}),
        ("attention_config", ((("local",), 2),), {"sliding_window_width": 4}),
    )


@pytest.mark.parametrize(
    "scores", [Scores(window=40), Scores(slopes=(0.5, 0.1)), Scores(7, (0.3, 0.2))]
)
def test_blocks_of_queries_are_one_attention(scores: Scores) -> None:
    """Three blocks, the last a part of one: outputs and gradients of the whole matrix of scores."""
    generator = torch.Generator().manual_seed(2)
    tensors = [torch.randn(2, heads, 300, 8, generator=generator) for heads in (2, 1, 1)]
    mine, plain = ([x.clone().requires_grad_() for x in tensors] for _ in range(2))
    places = torch.arange(300)
    mask = scores.mask(places, places, tensors[0])
    bias = mask if mask.is_floating_point() else torch.zeros(()).where(mask, -torch.inf)
    weights = (plain[0] @ plain[1].transpose(2, 3) / 8**0.5 + bias).softmax(-1)
    expected, got = weights @ plain[2], attend_causally(*mine, scores)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    got.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if o.key in ("pos_emb", "sliding_window_width")], ids=str
)
@torch.no_grad()
def test_segments_are_texts_of_their_own(option: Option) -> None:
    """Where positions begin anew, a segment's logits are those of its text alone."""
    model = shaken(option)
    starts = torch.tensor([[0, 5, 12], [0, 9, 16]])
    segments = Segments.from_starts(starts, 16, torch.device("cpu"))
    got = model(TOKENS, position_ids=positions_within(starts, 16), segments=segments)
    for row, first, stop in ((0, 0, 5), (0, 5, 12), (0, 12, 16), (1, 0, 9), (1, 9, 16)):
        alone = model(TOKENS[row : row + 1, first:stop])[0]
        torch.testing.assert_close(got[row, first:stop], alone, rtol=1e-4, atol=2e-5)
