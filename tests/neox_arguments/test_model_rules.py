"""Protects the rules about options of the model: which combinations stop a start, and what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.registry import FIELDS
from megatron.neox_arguments.sections import ModelArgs
from tests.support.neox_fields import neox_fields
from tests.support.small_config import refusal, small

YARN = {
    "rotary_scaling": "yarn",
    "rotary_scaling_factor": 2.0,
    "rotary_original_positions": 4,
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"rotary_scaling": "linear", "pos_emb": "none"},
            "rotary_scaling: has a meaning with pos_emb: rotary, found none",
        ),
        (
            {**YARN, "rotary_scaling_factor": 0.5},
            "rotary_scaling_factor: 0.5 is below 1: texts get longer",
        ),
        (
            {**YARN, "rotary_original_positions": None},
            "rotary_original_positions: missing: rotary_scaling: yarn follows from it",
        ),
        (
            {**YARN, "rotary_scaling": "llama3", "rotary_low_freq_factor": 4.0},
            "rotary_low_freq_factor: 4 is not below rotary_high_freq_factor 4",
        ),
        (
            {**YARN, "rotary_emb_base": 1},
            "rotary_emb_base: is 1: all pairs turn alike, and rotary_scaling: yarn tells them apart",
        ),
        (
            {**YARN, "rotary_beta_fast": 1.0},
            "rotary_beta_fast: 1 is not above rotary_beta_slow 1",
        ),
        (
            {"pos_emb": "rpe", "pipe_parallel_size": 2},
            "pos_emb: rpe has one table for all layers, and the 2 stages of a pipeline "
            "(pipe_parallel_size) hold different layers: use pipe_parallel_size: 0 or 1",
        ),
        ({"pos_emb": "rpe", "rpe_num_buckets": 1}, "rpe_num_buckets: 1 tells no distances apart"),
        (
            {"pos_emb": "rpe", "rpe_max_distance": 16},
            "rpe_max_distance: 16 is within the first 16 distances (half of rpe_num_buckets)",
        ),
        (
            # A width of heads of its own is one that layers can be counted with.
            {"hidden_size": 30, "head_dim": 8, "pipe_parallel_size": 6},
            "pipe_parallel_size: 6 stages for 5 layers with weights",
        ),
        ({"gpt_j_tied": True}, "gpt_j_tied: attention and MLP can share a norm where they have"),
        (
            {"opt_pos_emb_offset": 2},
            "opt_pos_emb_offset: has a meaning with pos_emb: learned, found rotary",
        ),
        (
            {"pos_emb": "sinusoidal", "hidden_size": 33, "head_dim": 8},
            "hidden_size: 33 is odd: pos_emb: sinusoidal has a sine and a cosine each",
        ),
        (
            {"norm": "scalenorm", "norm_weight_offset": 1.0},
            "norm_weight_offset: is added to a norm",
        ),
        (
            {"activation": "relu", "gelu_form": "erf"},
            "gelu_form: has a meaning with activation: gelu",
        ),
        (
            {"use_qk_layernorm": True, "qk_norm": "head"},
            "qk_norm: is head, but use_qk_layernorm: true means neox",
        ),
        (
            {"use_qk_layernorm": True, "norm": "rmsnorm"},
            "use_qk_layernorm: one norm over all heads (neox) is a layernorm, norm is rmsnorm",
        ),
        (
            {"qk_norm": "neox", "num_kv_heads": 2},
            "qk_norm: one norm over all heads (neox) needs as many key heads as query heads",
        ),
        (
            {"qk_norm": "head", "norm": "scalenorm"},
            "qk_norm: a norm of each head has weights, norm: scalenorm has none of that form",
        ),
        (
            {"qk_norm": "neox", "context_parallel_size": 2},
            "context_parallel_size: each rank attends with some heads, and one norm over all",
        ),
        ({"attention_config": [[[1], 2]]}, "attention_config: a kind of attention is a word"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"rpe_max_distance": 64}, "ignored: rpe_max_distance (pos_emb is rotary)"),
        (
            {"rpe_num_buckets": 8, "rpe_max_distance": 64, "pos_emb": "none"},
            "ignored: rpe_num_buckets, rpe_max_distance (pos_emb is none)",
        ),
        (
            {"pos_emb": "alibi", "rotary_pct": 0.25, "rotary_emb_base": 500},
            "ignored: rotary_pct, rotary_emb_base (pos_emb is alibi)",
        ),
        (
            {"rotary_scaling_factor": 8.0},
            "ignored: rotary_scaling_factor (rotary_scaling is none)",
        ),
        (
            {**YARN, "rotary_beta_fast": 16.0, "rotary_high_freq_factor": 8.0},
            "ignored: rotary_high_freq_factor (rotary_scaling is yarn)",
        ),
        (
            {"allow_chopped": False},
            "ignored: allow_chopped (pack_impl: packed cuts documents wherever a sample ends)",
        ),
        (
            {"sequence_parallel": True},
            "ignored: sequence_parallel (there is one tensor-parallel rank)",
        ),
        (
            {"activation": "relu", "bias_gelu_fusion": True},
            "ignored: bias_gelu_fusion (activation is relu)",
        ),
        (
            {"gelu_form": "erf", "bias_gelu_fusion": True},
            "ignored: bias_gelu_fusion (gelu_form is erf)",
        ),
    ],
)
def test_what_has_no_effect_is_said(changes: dict[str, Any], note: str) -> None:
    assert note in NeoXArgs.from_dict(small(**changes)).notes


def test_a_pipeline_of_one_stage_has_all_layers() -> None:
    args = NeoXArgs.from_dict(small(pos_emb="rpe", pipe_parallel_size=1))
    assert args.model.pos_emb == "rpe"


def test_the_table_of_distances_is_counted_once() -> None:
    shape: dict[str, Any] = {"num_layers": 3, "hidden_size": 8, "num_attention_heads": 2}
    plain, relative = (
        ModelArgs(**shape, pos_emb=kind).layer_parameter_counts(16) for kind in ("none", "rpe")
    )
    assert [b - a for a, b in zip(plain, relative, strict=True)] == [0, 0, 64, 0, 0, 0, 0, 0]


def test_a_part_of_a_configuration_may_have_no_model(tmp_path: Path) -> None:
    (tmp_path / "part.yml").write_text("seed: 3\n")
    part = NeoXArgs.from_ymls([tmp_path / "part.yml"], may_be_a_part=True)
    assert not part.model.is_given
    assert NeoXArgs.from_dict(small()).model.is_given


@pytest.mark.parametrize(
    ("norm", "numbers"),
    [("layernorm", 16), ("rmsnorm", 8), ("scalenorm", 1), ("non_parametric_layernorm", 0)],
)
def test_numbers_in_a_norm(norm: Any, numbers: int) -> None:
    assert ModelArgs(norm=norm).norm_parameter_count(8) == numbers


MUP = {"use_mup": True, "base_shapes_file": "base.yml"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"use_mup": True},
            "base_shapes_file: missing, and use_mup is true: run a narrow model once with save_base_shapes",
        ),
        (
            {"save_base_shapes": True},
            "base_shapes_file: missing, and save_base_shapes is true: that is where they are written to",
        ),
        (
            {**MUP, "save_base_shapes": True, "coord_check": True},
            "coord_check: save_base_shapes is true too",
        ),
        (
            {**MUP, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
            "use_mup: its learning rates are those of Adam",
        ),
        (
            {**MUP, "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "adam_w_mode": False}}},
            "use_mup: with optimizer.params.adam_w_mode: false weight decay is added to gradients",
        ),
        ({**MUP, "norm": "scalenorm"}, "use_mup: norm: scalenorm gives vectors a fixed length"),
        (
            {"coord_check": True, "pipe_parallel_size": 2},
            "coord_check: looks at all layers, and each of the 2 stages of a pipeline",
        ),
        ({"mup_width_scale": 1}, "mup_width_scale: found 1, expected a whole number from 2"),
    ],
)
def test_what_mup_needs(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


def test_mup_is_accepted_and_its_multipliers_are_ignored_without_it() -> None:
    multipliers = {"mup_attn_temp": 2.0, "mup_init_scale": 0.5}
    assert NeoXArgs.from_dict(small(**MUP, **multipliers)).notes == ()
    (note,) = NeoXArgs.from_dict(small(**multipliers)).notes
    assert note == "ignored: mup_init_scale, mup_attn_temp (use_mup is false)"


PROMPT = {"enabled": True, "num_tokens": 4}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pipe_parallel_size": 1}, ": the vectors are at one end of a pipeline"),
        ({"context_parallel_size": 2}, ": context_parallel_size gives each rank as many tokens"),
        (
            {"model_parallel_size": 2, "sequence_parallel": True},
            ": sequence_parallel gives each rank as many tokens",
        ),
        (
            {"reset_attention_mask": True},
            ": the vectors are in front of a sample, and with reset_att",
        ),
        ({"zero_optimization": {"stage": 3}}, ": with ZeRO stage 3 frozen weights are cut"),
        ({"reshape_on_load": True}, ": a state in which most weights are frozen"),
        ({"soft_prompt_tuning": {**PROMPT, "tokens": 3}}, ".tokens: "),
        ({"soft_prompt_tuning": {**PROMPT, "num_tokens": 0}}, ".num_tokens: found 0"),
    ],
)
def test_what_a_soft_prompt_cannot_have(changes: dict[str, Any], text: str) -> None:
    said = refusal(**{"soft_prompt_tuning": PROMPT, **changes})
    assert said.startswith(f"soft_prompt_tuning{text}")


def test_a_soft_prompt_that_is_switched_off_is_none() -> None:
    off = NeoXArgs.from_dict(small(soft_prompt_tuning={"enabled": False, "num_tokens": 3}))
    assert off.variants.soft_prompt is None
    on = NeoXArgs.from_dict(small(soft_prompt_tuning=PROMPT)).variants.soft_prompt
    assert on is not None
    assert (on.num_tokens, on.init_string, on.init_range) == (4, "", 0.5)


# What the configuration knows of models that are not here.
KINDS = (
    "sparse_fixed",
    "sparse_variable",
    "bigbird",
    "bslongformer",
    "gmlp",
    "amlp",
    "mamba",
    "rwkv",
)
LACKING = re.compile("(moe_|mamba_|gmlp_)|(dim_att|head_size|ffn_dim|sparsity_config)$")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_layer_that_is_not_here_is_refused(kind: str) -> None:
    said = refusal(attention_config=[[["global", kind], 1]])
    assert said == f"attention_config: {kind} is not supported yet; choose of flash, global, local"


def test_keys_of_models_that_are_not_here_are_refused() -> None:
    keys = [key for key in neox_fields() if LACKING.match(key)]
    assert len(keys) == 17
    for key in keys:
        assert FIELDS[key].state == "refused", key
        assert "not supported yet" in FIELDS[key].mark.why, key
