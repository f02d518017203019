"""Whatever is written: it is accepted, or answered with a message that names the key. Nothing else."""

from __future__ import annotations

import json
from typing import Any

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


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
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
