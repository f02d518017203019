"""Every key of GPT-NeoX works, is ignored and said to be, or is refused; and none of that is a lie."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.known_keys import ALIASES, RUNTIME, SHORTHANDS
from megatron.neox_arguments.registry import FIELDS, FieldSpec
from megatron.neox_arguments.typed import choices_of
from tests.support.neox_fields import neox_fields
from tests.support.small_config import small

ROOT = Path(__file__).resolve().parents[2]
THEIRS = neox_fields()
MARKED = [spec for spec in FIELDS.values() if spec.mark is not None]


# One state each.


def test_there_are_as_many_as_gpt_neox_has() -> None:
    assert len(THEIRS) == 318


@pytest.mark.parametrize("key", THEIRS)
def test_a_field_of_gpt_neox_is_known_once(key: str) -> None:
    assert [key in FIELDS, key in ALIASES, key in RUNTIME].count(True) == 1


def test_second_names_and_short_names_lead_to_fields_that_work() -> None:
    for key in (*ALIASES.values(), *SHORTHANDS):
        assert FIELDS[key].state == "works", key
    assert {path[0] for path in SHORTHANDS.values()} <= set(FIELDS)


def test_keys_that_are_not_gpt_neoxs_are_few_and_ours() -> None:
    ours = {key for key, spec in FIELDS.items() if key not in THEIRS and spec.section != "ds"}
    assert ours == {
        "data_order",
        "index_cache_dir",
        "index_build_timeout_s",
        "allow_data_change",
        "eval_same_samples",
        "use_node_local_storage",
        "data_local_cache_dir",
        "data_local_cache_limit_gb",
        "reset_position_ids",
        "reshape_on_load",
        "reset_attention_mask",
        "head_dim",
        "rotary_scaling",
        "rotary_scaling_factor",
        "rotary_original_positions",
        "rotary_low_freq_factor",
        "rotary_high_freq_factor",
        "rotary_beta_fast",
        "rotary_beta_slow",
        "rotary_attention_factor",
        "norm_weight_offset",
        "qk_norm",
        "gelu_form",
        "embedding_scale",
        "use_bias_in_qkv",
        "context_parallel_size",
        "launch_env",
        "launcher_args",
    }


# Defaults where ours is another by choice; the field's text says so.
OUR_DEFAULTS: dict[str, Any] = {
    "gradient_accumulation_steps": None,  # follows from the other two batch keys
    "zero_stage": 0,
    "lr": 0.001,
    "precision": "fp32",
    "distributed_backend": None,  # by device
    "master_port": None,  # a free one
    "git_hash": None,
    # As DeepSpeed's, which are the same.
    "loss_scale_window": None,
    "min_scale": None,
    "hysteresis": None,
}


@pytest.mark.parametrize("key", sorted(THEIRS.keys() & FIELDS.keys()))
def test_defaults_and_choices_are_gpt_neoxs(key: str) -> None:
    theirs, ours = THEIRS[key], FIELDS[key]
    assert ours.default == OUR_DEFAULTS.get(key, theirs.default)
    if ours.annotation not in (int, bool, str) and theirs.choices != ("all",):  # zero_stage
        assert set(theirs.choices) <= set(choices_of(ours.annotation))


def test_a_file_that_writes_all_of_gpt_neoxs_defaults_asks_for_nothing() -> None:
    written = {key: field.default for key, field in THEIRS.items()}
    shape = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 8}
    args = NeoXArgs.from_dict(written | shape | {"train_micro_batch_size_per_gpu": 1}, world_size=1)
    assert args.notes == ("ignored: git_hash (a run says for itself what it runs)",)


# What each state does.


def on_value(annotation: Any, default: Any) -> Any:
    """A value of the right type that asks for something."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return on_value(get_args(annotation)[0], default)
    if origin in (Union, types.UnionType):
        return on_value(get_args(annotation)[0], default)
    if origin is Literal:
        return next(choice for choice in get_args(annotation) if choice != default)
    if origin is tuple:
        return [on_value(get_args(annotation)[0], None)]
    if origin is dict:
        return {"enabled": True}
    if annotation is bool:
        return not default
    if annotation in (int, float):
        return 7
    return "something"


def with_value(spec: FieldSpec) -> dict[str, Any]:
    value = on_value(spec.annotation, spec.default)
    if spec.key == "activation_checkpointing":
        value = {"partition_activations": True}
    return small(**{spec.key: value})


ALWAYS_SO = {"attention_softmax_in_fp32", "log_grad_norm"}  # true asks for what is done anyway


@pytest.mark.parametrize(
    "spec", [spec for spec in MARKED if spec.state == "ignored"], ids=lambda spec: spec.key
)
def test_an_ignored_key_is_named_with_the_reason(spec: FieldSpec) -> None:
    assert spec.mark is not None
    if spec.key in ALWAYS_SO:
        assert True in spec.mark.off
        return
    if choices_of(spec.annotation) == ("column",):
        pytest.skip("one choice")
    notes = NeoXArgs.from_dict(with_value(spec)).notes
    assert [note for note in notes if spec.key in note] == [
        f"ignored: {spec.key} ({spec.mark.why})"
    ]


@pytest.mark.parametrize(
    "spec",
    [s for s in MARKED if s.state == "refused" and s.key != "output_layer_parallelism"],
    ids=lambda spec: spec.key,
)
def test_a_refused_key_stops_the_start_with_a_remedy(spec: FieldSpec) -> None:
    with pytest.raises(ConfigError) as error:
        NeoXArgs.from_dict(with_value(spec))
    assert spec.mark is not None
    assert str(error.value).startswith(f"{spec.key}: found ")
    assert str(error.value).endswith(spec.mark.why)


@pytest.mark.parametrize("spec", MARKED, ids=lambda spec: spec.key)
@pytest.mark.parametrize("how", ["default", "null", "switched off"])
def test_asking_for_nothing_is_silent(spec: FieldSpec, how: str) -> None:
    value: Any = spec.default if how == "default" else None
    if how == "switched off":
        value = {"enabled": False, "more": 1} if "dict" in str(spec.annotation) else spec.default
        value = {"cpu_checkpointing": False} if spec.key == "activation_checkpointing" else value
        if spec.key in ("torch_autocast", "data_efficiency"):
            value = {"enabled": False}
    assert NeoXArgs.from_dict(small(**{spec.key: value})).notes == ()


# No lie: what works is read, what does not is not.


def outside() -> Iterator[ast.AST]:
    """All nodes of the code that acts: everything but the configuration's own room."""
    files = [
        *(ROOT / "megatron").rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
        *ROOT.glob("*.py"),
    ]
    for path in files:
        if "neox_arguments" not in path.parts:
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def names_in(nodes: Iterator[ast.AST]) -> tuple[set[str], set[str]]:
    """Attributes that are read, and patterns of names that ``getattr`` is given as f-strings."""
    names: set[str] = set()
    patterns: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        names.add(node.func.id)
        if node.func.id == "getattr" and isinstance(node.args[1], ast.JoinedStr):
            parts = [
                re.escape(part.value) if isinstance(part, ast.Constant) else "[a-z]+"
                for part in node.args[1].values
            ]
            patterns.add("".join(map(str, parts)))
    return names, patterns


def read_outside() -> set[str]:
    """Fields that code outside reads, by itself or through what the configuration's room computes."""
    names, patterns = names_in(outside())
    room = ROOT / "megatron" / "neox_arguments"
    computing = [*(room / "sections").glob("*.py")]
    computing += [room / name for name in ("arguments.py", "batch_sizes.py", "deepspeed_json.py")]
    functions = [
        node
        for path in computing
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    while True:
        live = [function for function in functions if function.name in names]
        more = set().union(*(names_in(ast.walk(function))[0] for function in live))
        if more <= names:
            break
        names |= more
    return {
        key
        for key in FIELDS
        if key in names or any(re.fullmatch(pattern, key) for pattern in patterns)
    }


# They act by arriving in DeepSpeed's configuration: test_deepspeed_json.py proves that they do.
THROUGH_DEEPSPEED = {key for key, spec in FIELDS.items() if spec.section == "ds"}
THROUGH_DEEPSPEED |= {
    key for key, path in SHORTHANDS.items() if path[0] in ("zero_optimization", "fp16")
}


def test_what_works_is_read() -> None:
    working = {key for key, spec in FIELDS.items() if spec.state == "works"}
    assert working - THROUGH_DEEPSPEED - read_outside() == set()


def test_what_does_not_work_is_not_read() -> None:
    of_tools = {"dataset_impl"}  # an option of preprocess_data.py too, where it means the file form
    marked = {spec.key for spec in MARKED if spec.section != "ds"}
    assert marked & read_outside() == of_tools
