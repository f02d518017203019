"""What the model promises beyond parity: causality, recomputation, dropout, half precision, cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import megatron.mpu.matmul
from megatron.losses import loss_sum
from megatron.model import GPT2Model
from tests.support.models import SINGLE, shake, tiny_model
from tools.benchmarks.measuring import kept_for_backward

TOKENS = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(1))
LLAMA = {
    "norm": "rmsnorm",
    "activation": "swiglu",
    "num_kv_heads": 2,
    "use_bias_in_attn_linear": False,
    "use_bias_in_mlp": False,
}


def loss_and_gradients(model: GPT2Model) -> tuple[Tensor, dict[str, Tensor]]:
    inputs, labels = TOKENS[:, :-1], TOKENS[:, 1:]
    loss = loss_sum(model(inputs), labels, torch.ones_like(labels, dtype=torch.bool), SINGLE)
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("pos_emb", ["rotary", "learned", "none"])
def test_a_token_changes_nothing_before_it_and_all_behind(pos_emb: str) -> None:
    model = tiny_model(pos_emb=pos_emb)
    shake(model)
    changed = TOKENS[:1, :16].clone()
    changed[0, 9] = (changed[0, 9] + 1) % 64
    before, after = model(TOKENS[:1, :16]), model(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert (before[0, 9:] != after[0, 9:]).any(-1).all()


def test_position_ids_shift_what_positions_mean() -> None:
    # Rotary attention sees distances alone; learned positions see places.
    positions = torch.arange(8).expand(2, 8)
    for pos_emb, same in (("rotary", True), ("learned", False)):
        model = tiny_model(pos_emb=pos_emb)
        shake(model)
        tokens = TOKENS[:, :8]
        plain = model(tokens)
        assert torch.equal(model(tokens, position_ids=positions), plain)
        shifted = model(tokens, position_ids=positions + 5)
        assert torch.allclose(shifted, plain, atol=1e-4) is same


def test_every_parameter_learns() -> None:
    for changes in ({"no_weight_tying": True, "pos_emb": "learned"}, LLAMA):
        model = tiny_model(**changes)
        _, gradients = loss_and_gradients(model)
        assert gradients.keys() == dict(model.named_parameters()).keys()
        assert all(gradient.any() for gradient in gradients.values())


def test_tied_weight_gets_the_gradients_of_both_ends() -> None:
    tied, untied = tiny_model(), tiny_model(no_weight_tying=True)
    untied.load_state_dict(
        {**tied.state_dict(), "sequential.6.final_linear.weight": tied.state_dict()[EMBEDDING]}
    )
    loss, gradients = loss_and_gradients(tied)
    same_loss, parts = loss_and_gradients(untied)
    assert loss == same_loss
    both = parts[EMBEDDING] + parts["sequential.6.final_linear.weight"]
    torch.testing.assert_close(gradients[EMBEDDING], both)


EMBEDDING = "sequential.0.word_embeddings.weight"


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputed_activations_give_equal_bits(dtype: torch.dtype, every: int) -> None:
    changes = {"num_layers": 3, "hidden_dropout": 0.2, "attention_dropout": 0.2}
    results = []
    for recompute in (False, True):
        model = tiny_model(
            checkpoint_activations=recompute, checkpoint_num_layers=every, **changes
        ).to(dtype)
        torch.manual_seed(11)
        results.append((*loss_and_gradients(model), torch.get_rng_state()))
    (loss, gradients, state), (other_loss, other_gradients, other_state) = results
    assert torch.equal(loss, other_loss)
    assert gradients.keys() == other_gradients.keys()
    assert all(torch.equal(gradients[n], other_gradients[n]) for n in gradients)
    assert torch.equal(state, other_state)


def test_recomputation_keeps_less() -> None:
    def kept(recompute: bool) -> int:
        model = tiny_model(num_layers=4, checkpoint_activations=recompute)
        with kept_for_backward(model) as sizes:
            logits = model(TOKENS[:, :-1])
        assert logits.requires_grad
        return sum(sizes.values())

    assert kept(True) < kept(False) / 4


@pytest.mark.parametrize("place", ["hidden_dropout", "attention_dropout"])
def test_dropout_is_random_in_training_and_absent_in_evaluation(place: str) -> None:
    dry, wet = tiny_model(), tiny_model(**{place: 0.3})
    shake(dry)
    wet.load_state_dict(dry.state_dict())
    tokens = TOKENS[:, :-1]
    wet.eval()
    assert torch.equal(wet(tokens), dry(tokens))
    wet.train()
    torch.manual_seed(1)
    first, second = wet(tokens), wet(tokens)
    torch.manual_seed(1)
    assert torch.equal(wet(tokens), first)
    assert not torch.equal(first, second)


def test_hidden_dropout_reaches_embedding_and_both_branches() -> None:
    """With p close to 1 all but nothing is left of what it is applied to."""
    torch.manual_seed(0)
    for parallel in (True, False):
        model = tiny_model(hidden_dropout=0.999, gpt_j_residual=parallel)
        x = model.sequential[0](TOKENS[:, :-1])
        for layer in model.sequential[2:4]:
            x = layer(x)
        # 1,024 numbers with five chances each to be kept once in a thousand, instead of all.
        assert (x != 0).sum() < 32


def half_loss(monkeypatch: pytest.MonkeyPatch, native: bool) -> tuple[Tensor, dict[str, Tensor]]:
    monkeypatch.setattr(megatron.mpu.matmul, "has_native_half_matmul", lambda: native)
    model = tiny_model(attention_dropout=0.0, **LLAMA).to(torch.bfloat16)
    return loss_and_gradients(model)


def test_half_precision_through_fp32_is_close_to_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, exact_gradients = loss_and_gradients(tiny_model(**LLAMA))
    loss, gradients = half_loss(monkeypatch, native=False)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=2e-3)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.bfloat16
        off = (gradient.float() - exact_gradients[name]).norm() / exact_gradients[name].norm()
        assert off < 0.05, name


def test_no_half_precision_product_runs_without_native_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.__name__
            if any(word in name for word in ("mm", "attention", "linear")):
                kinds.update((name, a.dtype) for a in args if isinstance(a, Tensor))
            return function(*args, **(kwargs or {}))

    kinds: set[tuple[str, torch.dtype]] = set()
    with Watch():
        half_loss(monkeypatch, native=False)
    floating = {(name, kind) for name, kind in kinds if kind.is_floating_point}
    assert {kind for _, kind in floating} == {torch.float32}
    # Both directions were seen.
    assert any("backward" in name for name, _ in floating)
    assert len([name for name, _ in kinds if "mm" in name]) >= 1


def test_training_goes_on_after_inference() -> None:
    model = tiny_model()
    with torch.inference_mode():
        model(TOKENS[:, :-1])
    _, gradients = loss_and_gradients(model)
    assert gradients


def test_only_gives_the_logits_of_one_token_a_row() -> None:
    model = tiny_model()
    whole = model(TOKENS)
    got = model(TOKENS, only=torch.tensor([3, 16]))
    assert got.shape == (2, 1, 64)
    torch.testing.assert_close(got[:, 0], torch.stack([whole[0, 3], whole[1, 16]]))


@pytest.mark.parametrize(
    "changes",
    [{}, {"pos_emb": "learned"}, {"rotary_pct": 0.5, "gpt_j_residual": True}, LLAMA],
    ids=["rotary", "learned", "partial", "grouped"],
)
def test_cache_gives_the_same_logits_row_by_row(changes: dict[str, object]) -> None:
    """Two rows of different lengths, read together, then token by token, each at its own place."""
    model = tiny_model(**changes).eval()
    shake(model)
    lengths = torch.tensor([9, 4])
    with torch.no_grad():
        whole = model(TOKENS[:, :16])
        cache = model.make_cache(2, 16)
        positions = torch.arange(9).expand(2, 9)
        first = model(TOKENS[:, :9], cache, positions)
        torch.testing.assert_close(first, whole[:, :9], rtol=0, atol=1e-5)
        for step in range(7):
            places = (lengths + step).unsqueeze(1)
            got = model(TOKENS.gather(1, places), cache, places)
            expected = torch.stack([whole[row, places[row, 0]] for row in range(2)])
            torch.testing.assert_close(got[:, 0], expected, rtol=0, atol=1e-5)
