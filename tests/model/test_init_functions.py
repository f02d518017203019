"""Every scheme gives the distribution it promises, and nothing but the seed and the name decides."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megatron.model.init_functions import _draw_part, _Place, standard_deviation
from tests.support.models import tiny_args, tiny_model

L, H = 3, 64


def wide(init: str, output: str, seed: int = 7, **changes: object) -> dict[str, Tensor]:
    model = tiny_model(
        512,
        seed=seed,
        num_layers=L,
        hidden_size=H,
        init_method=init,
        output_layer_init_method=output,
        **changes,
    )
    return dict(model.named_parameters())


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("normal", 0.02),
        ("scaled_normal", 0.02 / math.sqrt(2 * L)),
        ("small_init", math.sqrt(2 / (5 * H))),
        ("wang_init", 2 / (L * math.sqrt(H))),
        ("single_residual_scaled_normal", 0.02 / math.sqrt(L)),
    ],
)
def test_scheme(scheme: str, expected: float) -> None:
    got = standard_deviation(scheme, tiny_args(num_layers=L, hidden_size=H))
    assert got == pytest.approx(expected, rel=1e-12)
    other = "normal" if scheme != "normal" else "small_init"
    as_init, as_output = wide(scheme, other), wide(other, scheme)
    drawn = [
        as_init["sequential.0.word_embeddings.weight"],
        as_init["sequential.3.attention.query_key_value.weight"],
        as_init["sequential.3.mlp.linear1.weight"],
        as_output["sequential.3.attention.dense.weight"],
        as_output["sequential.3.mlp.linear2.weight"],
    ]
    for weight in drawn:
        n = weight.numel()
        assert weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * n))
        assert abs(weight.mean().item()) < 4 * expected / math.sqrt(n)
        # Of a normal distribution 4.55 % lie beyond two deviations; of a uniform one, none.
        beyond = (weight.abs() > 2 * expected).float().mean().item()
        assert beyond == pytest.approx(0.0455, abs=0.012)


def test_init_method_std_scales_normal() -> None:
    model = tiny_args(init_method_std=0.5, num_layers=8)
    assert standard_deviation("normal", model) == 0.5
    assert standard_deviation("scaled_normal", model) == 0.125


def test_untied_head_and_positions_are_drawn_like_embeddings() -> None:
    got = wide("small_init", "wang_init", no_weight_tying=True, pos_emb="learned")
    expected = math.sqrt(2 / (5 * H))
    for name in (
        f"sequential.{L + 4}.final_linear.weight",
        "sequential.0.position_embeddings.weight",
    ):
        assert got[name].std().item() == pytest.approx(expected, rel=0.1), name


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_biases_are_zero_and_norms_one(norm: str) -> None:
    for name, parameter in wide("normal", "normal", norm=norm).items():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name


def test_seed_and_name_decide() -> None:
    first, again, other = (wide("normal", "normal", seed=s) for s in (7, 7, 8))
    assert all(torch.equal(first[name], again[name]) for name in first)
    weights = [name for name, p in first.items() if p.dim() == 2]
    assert all(not torch.equal(first[name], other[name]) for name in weights)
    # Layers differ from each other.
    assert not torch.equal(
        first["sequential.2.mlp.linear1.weight"], first["sequential.3.mlp.linear1.weight"]
    )


def test_depth_does_not_change_the_layers_below() -> None:
    shallow = dict(tiny_model(num_layers=1, output_layer_init_method="normal").named_parameters())
    deep = dict(tiny_model(num_layers=3, output_layer_init_method="normal").named_parameters())
    name = "sequential.2.mlp.linear2.weight"
    assert torch.equal(shallow[name], deep[name])


@pytest.mark.parametrize("shape", [(7, 24), (64, 32), (33, 17), (1000, 7)], ids=str)
def test_a_part_drawn_in_blocks_is_that_of_one_draw(shape: tuple[int, int]) -> None:
    rows, columns = shape
    whole = torch.empty(shape).normal_(0.0, 0.3, generator=torch.Generator().manual_seed(5))
    for dim, runs in (
        (0, [(0, rows)]),
        (0, [(2, 3), (rows - 2, 2)]),
        (1, [(0, columns)]),
        (1, [(1, 2), (columns - 1, 1)]),
    ):
        expected = torch.cat([whole.narrow(dim, *run) for run in runs], dim)
        got = torch.empty(expected.shape)
        generator = torch.Generator().manual_seed(5)
        _draw_part(got, shape, _Place(dim, runs), 0.3, generator, block_elements=1)
        assert torch.equal(got, expected), (dim, runs)


def test_the_callers_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    tiny_model()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("scheme", ["xavier_normal", "xavier_uniform"])
def test_xavier_goes_by_inputs_and_outputs(scheme: str) -> None:
    got = wide(scheme, scheme)
    for name, sides in (
        ("sequential.3.attention.query_key_value.weight", 3 * H + H),
        ("sequential.3.mlp.linear2.weight", 4 * H + H),
    ):
        weight, deviation = got[name], math.sqrt(2 / sides)
        assert weight.std().item() == pytest.approx(deviation, rel=0.03)
        beyond = (weight.abs() > math.sqrt(3) * deviation).float().mean().item()
        # Of a normal distribution 8.3 % lie there; of a uniform one, none.
        assert beyond == pytest.approx(0.083 if scheme == "xavier_normal" else 0.0, abs=0.01)


@pytest.mark.parametrize(("scheme", "length"), [("orthogonal", 2.0), ("scaled_orthogonal", 2 / L)])
def test_orthogonal_rows_or_columns(scheme: str, length: float) -> None:
    got = wide(scheme, scheme)
    wide_one, tall = got["sequential.3.mlp.linear2.weight"], got["sequential.3.mlp.linear1.weight"]
    assert wide_one.shape == (H, 4 * H)
    expected = length * torch.eye(H)
    torch.testing.assert_close(wide_one @ wide_one.T, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(tall.T @ tall, expected, rtol=0, atol=1e-5)
