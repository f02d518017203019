"""Protects the table of families: fields, defaults, and what is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.conversion.expressible import computed, differences, family_named, family_of
from megatron.conversion.families import FAMILIES, Family
from megatron.conversion.fields import Inexpressible
from megatron.conversion.foreign_config import keys_of, not_understood
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import ModelArgs
from tests.support.models import tiny_args

# Sizes without which a file describes nothing.
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "intermediate_size": 48,
}
LLAMA: dict[str, Any] = {
    "norm": "rmsnorm",
    "activation": "swiglu",
    "use_bias_in_attn_linear": False,
    "use_bias_in_mlp": False,
}


def classes_fields(family: Family) -> dict[str, Any]:
    """The fields that transformers' class has beside those of every model, with their defaults."""
    theirs = transformers.CONFIG_MAPPING[family.name]
    everywhere = {item.name for item in dataclasses.fields(transformers.PretrainedConfig)}
    return {
        item.name: item.default
        for item in dataclasses.fields(theirs)
        if item.name not in everywhere and not item.name.startswith("_")
    }


def named(family: Family) -> str:
    return family.name


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_every_field_of_the_class_is_written(family: Family) -> None:
    told_elsewhere = {"vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"}
    assert set(classes_fields(family)) - told_elsewhere <= family.known


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_a_short_file_means_what_transformers_takes(family: Family) -> None:
    """Keys from a file with sizes alone are those from what transformers makes of it."""
    full = transformers.CONFIG_MAPPING[family.name](**SIZES).to_dict()
    ours = ModelArgs(**family.read(SIZES), seq_length=8)
    theirs = ModelArgs(**family.read(full), seq_length=8)
    assert computed(ours) == computed(theirs)


@pytest.mark.parametrize("family", FAMILIES, ids=named)
def test_older_releases_say_the_same_in_other_fields(family: Family) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = {**SIZES, "rope_theta": 5000.0, "rope_scaling": scaling}
    if family.name == "gpt_neox":
        old = {**SIZES, "rotary_emb_base": 5000, "rotary_pct": 0.25, "rope_scaling": scaling}
    full = transformers.CONFIG_MAPPING[family.name](**old).to_dict()
    keys = family.read(old)
    assert keys["rotary_emb_base"] == 5000
    assert keys["rotary_scaling"] == "linear"
    assert computed(ModelArgs(**keys, seq_length=8)) == computed(
        ModelArgs(**family.read(full), seq_length=8)
    )


def test_fields_that_nobody_looks_at() -> None:
    """What releases 4 add to GPT-NeoX's files says nothing new; what nobody knows is told."""
    llama, neox = family_named("llama"), family_named("neox")
    more = {"rope_theta": 10000, "partial_rotary_factor": 0.25, "transformers_version": "4.57.6"}
    assert not_understood(neox, {**neox.write(tiny_args()), **more}) == []
    strange = {"logit_scale": 2.0, "sparse": False, "adapters": None}
    assert not_understood(llama, {**SIZES, **strange}) == ["logit_scale: 2.0"]


def test_what_gpt_neox_calls_a_model() -> None:
    model = tiny_args(gpt_j_residual=True, rotary_pct=0.5, rotary_emb_base=500)
    assert family_of(model).name == "gpt_neox"
    assert family_named("neox") is family_named("gpt_neox")
    written = family_of(model).write(model)
    assert written["rotary_pct"] == 0.5
    assert written["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
    }
    assert written["use_parallel_residual"] is True
    assert written["intermediate_size"] == 128


def test_gated_widths_are_those_of_one_half() -> None:
    model = tiny_args(**LLAMA, intermediate_size=100)
    assert model.mlp_width == 33
    llama = family_named("llama")
    assert llama.write(model)["intermediate_size"] == 33
    assert llama.read(llama.write(model))["intermediate_size"] == 99


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "llama"),
        ({"num_kv_heads": 2}, "llama"),
        ({"rpe_num_buckets": 16, "layernorm_epsilon": 1e-3, "rotary_beta_fast": 9.0}, "llama"),
        ({"sliding_window_width": 5}, "mistral"),
        ({"use_bias_in_qkv": True}, "qwen2"),
        ({"qk_norm": "head"}, "qwen3"),
        ({"hidden_size": 30, "head_dim": 8}, "mistral"),
        (
            {
                "activation": "geglu",
                "gelu_form": "tanh",
                "norm_weight_offset": 1.0,
                "embedding_scale": 5.656854,
            },
            "gemma",
        ),
    ],
    ids=str,
)
def test_the_family_follows_from_the_keys(changes: dict[str, Any], name: str) -> None:
    assert family_of(tiny_args(**{**LLAMA, **changes})).name == name


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (tiny_args(pos_emb="learned"), ["pos_emb"]),
        (tiny_args(pos_emb="rpe"), ["pos_emb"]),
        (tiny_args(use_bias_in_mlp=False), ["use_bias_in_mlp"]),
        (tiny_args(num_kv_heads=2), ["num_kv_heads"]),
        (tiny_args(gpt_j_residual=True, gpt_j_tied=True), ["gpt_j_tied"]),
        (tiny_args(activation="softsign"), ["activation"]),
        (tiny_args(norm="scalenorm"), ["norm"]),
        (tiny_args(**LLAMA, attention_config=((("sparse_fixed",), 2),)), ["attention_config"]),
        (tiny_args(qk_norm="neox"), ["qk_norm"]),
        (tiny_args(**LLAMA, rotary_pct=0.5), ["rotary_pct"]),
        (
            tiny_args(
                **LLAMA,
                sliding_window_width=5,
                attention_config=((("local", "global"), 1),),
                head_dim=16,
            ),
            ["attention_config", "sliding_window_width", "head_dim", "use_bias_in_qkv", "qk_norm"],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else "",
)
def test_what_no_family_can_express_is_named(model: ModelArgs, keys: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        family_of(model)
    text = str(caught.value)
    assert len(text.splitlines()) <= 10
    assert any(f"    {key}" in text for key in keys), text


def test_a_family_that_is_asked_for() -> None:
    model = tiny_args(**LLAMA)
    assert family_of(model, "mistral").name == "mistral"
    with pytest.raises(CheckpointError, match=r"use_bias_in_qkv: False \(it has True\)"):
        family_of(model, "qwen2")


def test_a_key_that_has_come_since_is_not_lost() -> None:
    """Whatever field the model's section gets, two models that differ in it are two models."""
    model = tiny_args(**LLAMA)
    same = {
        *("precision", "seq_length", "make_vocab_size_divisible_by", "init_method"),
        *("init_method_std", "output_layer_init_method", "hidden_dropout", "attention_dropout"),
    }
    assert same <= {item.name for item in dataclasses.fields(ModelArgs)}
    assert computed(replace(model, seq_length=8)) == computed(model)
    assert computed(replace(model, opt_pos_emb_offset=2)) != computed(model)


def test_what_a_file_has_to_say() -> None:
    with pytest.raises(Inexpressible, match="hidden_size: None, expected a value: the file lacks"):
        family_named("llama").read({"num_hidden_layers": 2})
    with pytest.raises(Inexpressible, match="use_bidirectional_attention: True, expected None or"):
        family_named("gemma").read({**SIZES, "use_bidirectional_attention": True})
    with pytest.raises(Inexpressible, match="intermediate_size: '96', expected an even number"):
        family_named("gpt_neox").read({**SIZES, "intermediate_size": "96"})
    with pytest.raises(CheckpointError, match="model_type is missing: which family is it of"):
        keys_of(SIZES, Path("config.json"))


def test_yarn_begins_at_the_positions_of_the_file() -> None:
    scaling = {"rope_type": "yarn", "factor": 2.0}
    keys = family_named("llama").read(
        {**SIZES, "max_position_embeddings": 64, "rope_scaling": scaling}
    )
    assert (keys["rotary_scaling"], keys["rotary_original_positions"]) == ("yarn", 64)


def test_windows_layer_by_layer() -> None:
    windows = {**SIZES, "use_sliding_window": True, "sliding_window": 5}
    qwen = family_named("qwen2")
    full = qwen.read({**windows, "layer_types": ["full_attention"] * 2})
    assert "sliding_window_width" not in full
    some = qwen.read({**windows, "layer_types": ["full_attention", "sliding_attention"]})
    assert some["attention_config"] == [[["global"], 1], [["local"], 1]]
    with pytest.raises(Inexpressible, match=r"layer_types: .*2 times full_attention or sliding"):
        qwen.read({**windows, "layer_types": ["full_attention", "chunked_attention"]})


@st.composite
def models(draw: st.DrawFn) -> ModelArgs:
    """Models of any kind, most of which some family can express."""
    heads = draw(st.sampled_from([2, 4]))
    scaling = draw(st.sampled_from(["none", "none", "linear", "llama3", "yarn"]))
    return ModelArgs(
        num_layers=draw(st.integers(1, 4)),
        hidden_size=heads * draw(st.sampled_from([8, 16])),
        num_attention_heads=heads,
        num_kv_heads=draw(st.sampled_from([None, 1, 2, heads])),
        head_dim=draw(st.sampled_from([None, None, 12])),
        seq_length=8,
        max_position_embeddings=draw(st.sampled_from([8, 64])),
        pos_emb="rotary",
        rotary_pct=draw(st.sampled_from([1.0, 1.0, 0.5])),
        rotary_emb_base=draw(st.sampled_from([10000, 500000])),
        rotary_scaling=scaling,
        rotary_scaling_factor=draw(st.sampled_from([2.0, 8.0])),
        rotary_original_positions=draw(st.sampled_from([8, 64])),
        rotary_attention_factor=draw(st.sampled_from([None, 1.5])),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        rms_norm_epsilon=draw(st.sampled_from([1e-8, 1e-5])),
        activation=draw(st.sampled_from(["gelu", "relu", "swish", "swiglu", "geglu", "reglu"])),
        bias_gelu_fusion=draw(st.booleans()),
        intermediate_size=draw(st.sampled_from([None, 60, 77])),
        mlp_multiple_of=draw(st.sampled_from([1, 8])),
        use_bias_in_attn_linear=draw(st.booleans()),
        use_bias_in_qkv=draw(st.sampled_from([None, True, False])),
        use_bias_in_mlp=draw(st.booleans()),
        gpt_j_residual=draw(st.booleans()),
        no_weight_tying=draw(st.booleans()),
        qk_norm=draw(st.sampled_from(["none", "none", "head"])),
        sliding_window_width=draw(st.sampled_from([None, None, 3])),
    )


@settings(deadline=None)  # transformers imports parts of itself when they are first used
@given(models())
def test_what_a_family_can_express_comes_back(model: ModelArgs) -> None:
    """And transformers takes the fields as they are."""
    for family in FAMILIES:
        if differences(family, model):
            continue
        written = family.write(model)
        assert set(written) == family.known
        theirs = transformers.CONFIG_MAPPING[family.name](**written).to_dict()
        back = ModelArgs(**family.read(theirs), seq_length=model.seq_length)
        assert computed(back) == computed(model)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"rope_theta": 0.5}, "rope_theta"),
        ({"rope_theta": 10000.5}, "rope_theta"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "original_max"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, "mscale"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        ({"rope_scaling": {"rope_type": "none"}}, "expected default, linear, llama3, yarn"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": 65}, "hidden_size"),
    ],
    ids=str,
)
def test_what_we_have_no_words_for(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(Inexpressible, match=where):
        family_named("llama").read({**SIZES, **changes})
