"""Whatever is written: it is accepted, or answered with a message that names the key. Nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.problems import Problems
from megatron.neox_arguments.registry import FIELDS, KNOWN_KEYS
from megatron.neox_arguments.yaml_source import read_document
from tests.support.small_config import small

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, width=32),
    st.sampled_from(
        ["", "0", "1e-4", "adam", "global", "bfloat16", "{", "a: b", "\n", "é", "null"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["enabled", "stage", "type", "params", "lr", "x-y"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(sorted(KNOWN_KEYS)) | st.sampled_from(
    ["hiden_size", "train--iters", "", "a.b", "0"]
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), st.integers(1, 4))
def test_any_change_is_accepted_or_named(changes: dict[str, Any], world_size: int) -> None:
    try:
        args = NeoXArgs.from_dict(small() | changes, world_size=world_size)
    except ConfigError as error:
        text = str(error)
        assert len(text.splitlines()) <= 10
        assert text
    else:
        assert args.deepspeed_config(world_size)["train_batch_size"] > 0
        again = NeoXArgs.from_dict(args.flat(), world_size=world_size)
        assert again.hash() == args.hash()
        assert set(args.flat()) == {key for key, spec in FIELDS.items() if spec.state == "works"}


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_one_bad_value_is_about_its_key(value: Any) -> None:
    for key in ("seq_length", "zero_optimization", "split", "optimizer", "attention_config"):
        try:
            NeoXArgs.from_dict(small(**{key: value}))
        except ConfigError as error:
            text = str(error)
            assert key in text or "max_position_embeddings" in text or "lr" in text, (key, text)


# A whole file, broken in one place.

SIZES = st.integers(-2, 40) | st.sampled_from([0, 1, 7, 10**6, 2**31, 10**12])
SHAPE_KEYS = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "seq_length"),
    *("max_position_embeddings", "intermediate_size", "expansion_factor", "rotary_pct"),
    *("pipe_parallel_size", "model_parallel_size", "zero_stage", "min_lr", "lr_decay_iters"),
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("checkpoint_factor", "train_epochs", "world_size", "rank"),
)


def answer(text: str, world_size: int) -> str | None:
    """What is said about a file with this text; None if it is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.yml"
        path.write_text(text, encoding="utf-8")
        try:
            NeoXArgs.from_ymls([path], world_size=world_size)
        except ConfigError as error:
            return str(error)
    return None


@settings(max_examples=80, deadline=60_000)
@given(st.sampled_from(sorted(FIELDS)), VALUES, st.integers(1, 4))
def test_a_wrong_value_is_about_its_key(key: str, value: Any, world_size: int) -> None:
    said = answer(yaml.safe_dump(small() | {key: value}), world_size)
    if said is not None:
        # Other keys may be the ones that no longer fit: they are named with it, or in place of it.
        assert key in said or any(other in said for other in small()), said
        assert len(said.splitlines()) <= 10


@settings(max_examples=80, deadline=60_000)
@given(st.sampled_from(sorted(small())), st.integers(0, 40), st.sampled_from("xq_"), st.booleans())
def test_a_misspelt_key_is_named(key: str, at: int, letter: str, drops: bool) -> None:
    at %= len(key)
    wrong = key[:at] + ("" if drops else letter) + key[at + 1 :]
    assume(wrong not in KNOWN_KEYS and wrong not in ("", "_") and wrong == wrong.strip("_"))
    config = {wrong if name == key else name: value for name, value in small().items()}
    said = answer(yaml.safe_dump(config), 1)
    assert said is not None
    assert f"{wrong}: unknown key" in said


@settings(max_examples=80, deadline=60_000)
@given(
    st.dictionaries(st.sampled_from(SHAPE_KEYS), SIZES, min_size=1, max_size=5), st.integers(1, 9)
)
def test_contradicting_sizes_are_accepted_or_named(sizes: dict[str, int], world_size: int) -> None:
    said = answer(yaml.safe_dump(small() | sizes), world_size)
    if said is not None:
        assert any(key in said for key in (*sizes, *small())), said


@settings(max_examples=80, deadline=60_000)
@given(
    st.integers(0, 10**4),
    st.integers(0, 5),
    st.text(st.sampled_from("{}[]:,-#&*!|>'\"%@`~ab01.e_ \n\t\\é"), max_size=6),
)
def test_odd_yaml_is_accepted_or_answered_with_its_file(at: int, gone: int, new: str) -> None:
    text = yaml.safe_dump(small(), default_flow_style=at % 2 == 0)
    at %= len(text)
    said = answer(text[:at] + new + text[at + gone :], 1)
    if said is not None:
        assert "broken.yml" in said or any(key in said for key in KNOWN_KEYS), said


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("{}[]:,-#&*!|>'\"%@`~ab01.e_ \n\t\\\x00é"), max_size=60))
def test_any_text_is_read_or_answered(text: str) -> None:
    problems = Problems()
    document = read_document("f.yml", text, problems)
    assert isinstance(document.values, dict)
    if problems:
        assert problems.message().startswith(("f.yml", "the configuration has"))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b_c", "d"]), VALUES, max_size=3))
def test_what_json_writes_is_read_back(values: dict[str, Any]) -> None:
    problems = Problems()
    text = json.dumps(values)
    assume("Infinity" not in text)
    document = read_document("f.yml", text, problems)
    assert not problems, problems.message()
    assert document.values == _canonical(values)


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.replace("-", "_"): _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return value
