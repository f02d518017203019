"""Which test compares which option of the model with a plain reference.

Options with a formula in :mod:`tests.model.plain_decoder` stand in :data:`~tests.model.options.OPTIONS`,
and are all compared in ``test_options.py``, forward and gradient. The others are here, each with its test.
``tools/config/write_option_tests.py`` makes a table of both, and fails where an option has no test.
"""

from __future__ import annotations

from typing import Any

from tests.model.options import OPTIONS

_HF = "tests/model/test_hf_parity.py"
_SCALED = f"{_HF}::test_scaled_rotations"
_INIT = "tests/model/test_init_functions.py"
_DROPOUT = (
    "tests/model/test_gpt2_model.py::test_dropout_is_random_in_training_and_absent_in_evaluation"
)
_SOFTMAX = "tests/model/test_softmax_keys.py"
_NORMAL = ("normal", "scaled_normal", "small_init", "wang_init", "single_residual_scaled_normal")

# Compares each of OPTIONS.
OF_FORMULAS = "tests/model/test_options.py::test_logits_and_gradients_are_those_of_the_formula"
# Any value of a key whose values are numbers.
ANY = "any value"


def _of_init(scheme: str) -> str:
    if scheme in _NORMAL:
        return f"{_INIT}::test_scheme[{scheme}-"
    if scheme.startswith("xavier"):
        return f"{_INIT}::test_xavier_goes_by_inputs_and_outputs[{scheme}]"
    return f"{_INIT}::test_orthogonal_rows_or_columns[{scheme}-"


_SCHEMES = (*_NORMAL, "xavier_normal", "xavier_uniform", "orthogonal", "scaled_orthogonal")

# A test, or the beginning of its name.
ELSEWHERE: dict[tuple[str, Any], str] = {
    **{
        (key, scheme): _of_init(scheme)
        for key in ("init_method", "output_layer_init_method")
        for scheme in _SCHEMES
    },
    ("init_method_std", ANY): f"{_INIT}::test_init_method_std_scales_normal",
    **{("rotary_scaling", kind): f"{_SCALED}[{kind}]" for kind in ("linear", "llama3", "yarn")},
    ("rotary_scaling", "none"): f"{_HF}::test_gpt_neox",
    ("rotary_scaling_factor", ANY): f"{_SCALED}[linear]",
    ("rotary_original_positions", ANY): f"{_SCALED}[llama3]",
    ("rotary_low_freq_factor", ANY): f"{_SCALED}[llama3]",
    ("rotary_high_freq_factor", ANY): f"{_SCALED}[llama3]",
    ("rotary_beta_fast", ANY): f"{_SCALED}[yarn]",
    ("rotary_beta_slow", ANY): f"{_SCALED}[yarn]",
    (
        "rotary_attention_factor",
        ANY,
    ): "tests/model/test_softmax_keys.py::test_yarns_factor_is_given",
    ("hidden_dropout", ANY): f"{_DROPOUT}[hidden_dropout]",
    ("attention_dropout", ANY): f"{_DROPOUT}[attention_dropout]",
    ("qk_norm", "none"): f"{_HF}::test_gpt_neox",
    (
        "z_loss",
        ANY,
    ): "tests/losses/test_language_model.py::test_z_loss_is_the_square_of_log_z",
    (
        "use_mup",
        True,
    ): "tests/model/test_parametrization.py::test_it_is_a_standard_model_with_other_weights",
    (
        "soft_prompt_tuning",
        ANY,
    ): "tests/model/test_soft_prompt.py::test_vectors_are_like_tokens_in_front",
    ("attention_softmax_in_fp32", True): f"{_SOFTMAX}::test_softmax_is_computed_in_fp32",
    ("apply_query_key_layer_scaling", True): f"{_SOFTMAX}::test_large_products_do_not_overflow",
    **{
        (key, True): f"{_SOFTMAX}::test_keys_about_kernels_change_nothing[{key}]"
        for key in (
            "scaled_upper_triang_masked_softmax_fusion",
            "scaled_masked_softmax_fusion",
            "rope_fusion",
            "bias_dropout_fusion",
        )
    },
}


def tests_of(key: str, value: Any) -> list[str]:
    """The tests of an option, or the beginnings of their names; :data:`ANY` is any value of the key."""
    about = [option for option in OPTIONS if option.key == key]
    about = about or [option for option in OPTIONS if key in option.beside]
    found = [
        f"{OF_FORMULAS}[{option}]"
        for option in about
        if value in (ANY, option.changes[key], *_kinds(option.changes[key]))
    ]
    return found + ([ELSEWHERE[key, value]] if (key, value) in ELSEWHERE else [])


def _kinds(value: Any) -> tuple[str, ...]:
    """Of an ``attention_config``, written as one run of layers."""
    return tuple(value[0][0]) if isinstance(value, tuple) else ()
