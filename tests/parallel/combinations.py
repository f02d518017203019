"""Which layouts and variants of the model are compared with one process.

Every layout with one variant; every variant on sixteen layouts in which any two values of two axes meet
that can; and, for what else a model can be made of, every option on three layouts.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tests.parallel.layouts import Layout, Variant

Case = tuple[Layout, Variant]

LAYOUTS = [
    Layout(model, sequence, data, zero)
    for model, sequence, data, zero in product((1, 2, 4), (False, True), (1, 2), (0, 1, 2, 3))
    if model > 1 or not sequence
]
PIPE_LAYOUTS = [
    place
    for pipe, model, sequence, data, zero in product(
        (1, 2, 4), (1, 2, 4), (False, True), (1, 2), (0, 1)
    )
    if (model > 1 or not sequence)
    and (place := Layout(model, sequence, data, zero, pipe=pipe)).ranks <= 8
]
CONTEXT_LAYOUTS = [
    Layout(model, sequence, data, zero, context)
    for model, sequence, context in ((1, False, 2), (1, False, 4), (2, False, 2), (2, True, 2))
    for data, zero in ((1, 0), (1, 1), (1, 3), (2, 0), (2, 2), (2, 3))
]
OFFLOAD_LAYOUTS = [
    Layout(model, model > 1, 2, zero, offload=offload)
    for model in (1, 2)
    for zero, offload in (
        (1, ("optimizer",)),
        (2, ("optimizer",)),
        (3, ("optimizer",)),
        (3, ("param",)),
        (3, ("optimizer", "param")),
    )
]
# The cheapest set that was found in which any two values of two axes meet that meet in a layout at all.
PAIRS = [
    Layout(1, False, 1, zero=1),
    Layout(1, False, 1, zero=2),
    Layout(1, False, 2, zero=0),
    Layout(1, False, 2, zero=3),
    Layout(1, False, 1, zero=0, pipe=1),
    Layout(1, False, 2, zero=0, pipe=2),
    Layout(1, False, 2, zero=1, pipe=4),
    Layout(2, False, 2, zero=2),
    Layout(2, False, 1, zero=0, pipe=1),
    Layout(2, True, 1, zero=3),
    Layout(2, True, 1, zero=1, pipe=2),
    Layout(2, True, 1, zero=0, pipe=4),
    Layout(4, False, 1, zero=3),
    Layout(4, False, 1, zero=0, pipe=2),
    Layout(4, True, 1, zero=2),
    Layout(4, True, 2, zero=1, pipe=1),
]


def meetings(place: Layout) -> set[tuple[str, object, str, object]]:
    """Each two values of axes that meet in ``place``."""
    axes = ("model", "sequence", "data", "zero", "pipe")
    values = [(axis, getattr(place, axis)) for axis in axes]
    return {(*one, *other) for number, one in enumerate(values) for other in values[:number]}


def _case(place: Layout, kv_heads: int, *, untied: bool, parallel: bool) -> Case:
    """In larger worlds one layer, unless stages share them: half the messages for the same sums."""
    layers = 2 if place.pipe or place.ranks <= 2 else 1
    return place, Variant(kv_heads, untied, parallel, layers)


CASES = [
    *(
        _case(place, 2, untied=True, parallel=True)
        for place in LAYOUTS + PIPE_LAYOUTS + CONTEXT_LAYOUTS + OFFLOAD_LAYOUTS
    ),
    *(
        _case(place, kv_heads, untied=untied, parallel=parallel)
        for number, place in enumerate(PAIRS)
        # Of heads that share keys and values, there are two groups, or one.
        for kv_heads, untied, parallel in product((4, 1 + number % 2), (False, True), (False, True))
    ),
    *(
        _case(place, kv_heads, untied=untied, parallel=parallel)
        for number, (kv_heads, untied, parallel) in enumerate(
            product((4, 2, 1), (False, True), (False, True))
        )
        for place in (
            Layout(2, sequence=number % 2 == 0, zero=number // 2 % 2, context=2),
            Layout(data=1 + number % 2, zero=number // 2 % 2, context=4),
        )
    ),
]
CASES = list(dict.fromkeys(CASES))

# One layer, and of each kind one: shared and own key/value heads, tied and untied, both residuals.
# Without biases in norms: without rotations that of keys changes nothing, and is rounding alone.
_WINDOWED = (
    ("qk_norm", "head"),
    ("pos_emb", "alibi"),
    ("sliding_window_width", 5),
    ("use_bias_in_norms", False),
)
SAMPLE = [
    (Layout(2, zero=1), Variant(2, untied=False, parallel=True, layers=1, options=_WINDOWED)),
    (Layout(zero=3, context=2), Variant(4, untied=False, layers=1)),
    (Layout(2, sequence=True, zero=2, context=2), Variant(2, untied=True, layers=1)),
    (Layout(2, sequence=True, data=2, zero=3), Variant(1, untied=False, layers=1)),
    (Layout(2, sequence=True, zero=0), Variant(4, layers=1, options=(("qk_norm", "neox"),))),
    (Layout(data=2, zero=0, pipe=2), Variant(2, untied=False, layers=1)),
    (Layout(2, sequence=True, zero=1, pipe=2), Variant(1, untied=True, parallel=True)),
    (Layout(data=2, zero=3, offload=("optimizer", "param")), Variant(2, untied=True, layers=1)),
]
# What each option adds to the parameters that ranks split, or share.
_OPTIONS: list[tuple[int, dict[str, Any]]] = [
    (4, {"qk_norm": "neox"}),
    (4, {"qk_norm": "head"}),
    (1, {"qk_norm": "head", "norm": "rmsnorm", "norm_weight_offset": 1.0}),
    (4, {"pos_emb": "alibi"}),
    (4, {"pos_emb": "rpe", "rpe_num_buckets": 8, "rpe_max_distance": 12}),
    (4, {"pos_emb": "sinusoidal", "gpt_j_residual": True, "gpt_j_tied": True}),
    (2, {"head_dim": 12, "use_bias_in_qkv": False}),
    (1, {"use_bias_in_qkv": True, "use_bias_in_attn_linear": False}),
    (4, {"norm": "scalenorm", "embedding_scale": 4.0}),
    (4, {"norm": "non_parametric_layernorm", "activation": "geglu", "mlp_multiple_of": 2}),
]
OPTION_CASES = [
    (place, Variant(kv_heads, options=tuple(options.items())))
    for kv_heads, options in _OPTIONS
    for place in (
        Layout(2, sequence=True, zero=0),
        Layout(2, sequence=False, data=2, zero=1),
        Layout(2, sequence=True, data=2, zero=3),
    )
]
# What several layers share, where each rank attends with some heads, and where layers run twice.
_SHARED = {"pos_emb": "rpe", "rpe_num_buckets": 8, "rpe_max_distance": 12}
OPTION_CASES += [
    (Layout(2, sequence=True, zero=2, context=2), Variant(2, options=tuple(_SHARED.items()))),
    (Layout(zero=0, context=4), Variant(1, options=tuple(_SHARED.items()))),
    (Layout(data=2, zero=1, pipe=1), Variant(4, options=tuple(_SHARED.items()))),
    *(
        (
            Layout(2, sequence=True, data=2, zero=zero),
            Variant(4, options=(*_SHARED.items(), ("checkpoint_activations", True))),
        )
        for zero in (1, 3)
    ),
]
# Rows of half precision; ZeRO stage 0 runs as 1.
HALF = [
    Layout(model=2, sequence=False, zero=1),
    Layout(model=2, sequence=True, zero=2),
    Layout(data=2, zero=1),
    Layout(data=2, zero=2),
    Layout(zero=1, pipe=2),
    Layout(model=2, sequence=False, data=2, zero=1),
    Layout(model=2, sequence=True, data=2, zero=2),
    Layout(model=2, sequence=True, zero=1, pipe=2),
    Layout(zero=1, pipe=4),
]
