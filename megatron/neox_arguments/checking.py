"""From merged values to typed ones: which keys are known, what each may hold, what follows from what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megatron.neox_arguments.derived import (
    PRECISION_NAMES,
    derive_hostfile,
    derive_precision,
    derive_zero_stage,
)
from megatron.neox_arguments.groups import check_groups, report
from megatron.neox_arguments.known_keys import RUNTIME
from megatron.neox_arguments.merging import COMMAND_LINE, Merged, same_value
from megatron.neox_arguments.problems import Place, Problems, shown
from megatron.neox_arguments.registry import FIELDS, KNOWN_KEYS, FieldSpec, meant_key, suggestion
from megatron.neox_arguments.secrets import refuse_secrets
from megatron.neox_arguments.shorthands import fold_shorthands
from megatron.neox_arguments.typed import Ignored, Mismatch, choices_of, convert
from megatron.neox_arguments.values import thaw

# Fields whose names are taken in any case, as GPT-NeoX takes them.
_CASELESS: dict[str, dict[str, str]] = {
    key: {choice.lower(): choice for choice in choices_of(FIELDS[key].annotation)}
    for key in ("tokenizer_type", "optimizer_type")
}


@dataclass
class Checked:
    """What the files say, typed.

    Attributes:
        values: field to value, for the fields that were written or follow from others.
        runtime: values that only a run knows, as the files expect them.
        notes: lines to say once.
    """

    values: dict[str, Any] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def check_values(merged: Merged, problems: Problems) -> Checked:
    """Type every value and derive those that follow; what is wrong goes to ``problems``."""
    checked = Checked()
    refuse_secrets(merged, problems)
    fold_shorthands(merged, problems)
    check_groups(merged, problems)
    ignored: dict[str, list[str]] = {}
    for key in merged.values:
        if key in RUNTIME:
            _check_runtime_value(key, merged, checked, problems)
        elif key not in FIELDS:
            _say_unknown(key, merged, problems)
        elif FIELDS[key].mark is None:
            _check_field(key, merged, checked, problems)
        else:
            _check_marked(FIELDS[key], merged, checked, ignored, problems)
    for why, keys in ignored.items():
        checked.notes.append(f"ignored: {', '.join(keys)} ({why})")
    derive_precision(merged, checked.values, problems)
    derive_zero_stage(checked.values, checked.notes)
    derive_hostfile(checked.values, checked.notes)
    if checked.values.get("max_position_embeddings") is None and "seq_length" in checked.values:
        checked.values["max_position_embeddings"] = checked.values["seq_length"]
    return checked


def _say_unknown(key: str, merged: Merged, problems: Problems) -> None:
    """A key that is not there; of a group of known keys, what each of them is called here."""
    value = merged.values[key]
    inner: dict[str, str | None] = {}
    if isinstance(value, dict) and meant_key(key) is None:
        inner = {name: meant_key(f"{key}_{name}") or meant_key(name) for name in value}
    if not any(inner.values()):
        problems.add(key, f"unknown key; {suggestion(key)}", merged.place((key,)))
        return
    for name, meant in inner.items():
        if name in KNOWN_KEYS:
            text = "it is a key of its own here: write it at the top level"
        else:
            text = (
                f"unknown key; did you mean {meant}, at the top level?" if meant else "unknown key"
            )
        problems.add(f"{key}.{name}", text, merged.place((key, name)))


def _check_marked(
    spec: FieldSpec,
    merged: Merged,
    checked: Checked,
    ignored: dict[str, list[str]],
    problems: Problems,
) -> None:
    """A field that does not act: silent where it asks for nothing, else named or refused."""
    key, value, mark = spec.key, merged.values[spec.key], spec.mark
    assert mark is not None
    if value is None:
        return
    off = _asks_for_nothing(value, spec)
    try:
        checked.values[key] = convert(value, spec.annotation, merged.texts.get((key,)))
    except Mismatch as mismatch:
        if not off:
            report(mismatch, (key,), merged, problems)
        return
    if off:
        return
    if isinstance(mark, Ignored):
        ignored.setdefault(mark.why, []).append(key)
    else:
        problems.add(key, f"found {shown(value)}: {mark.why}", merged.place((key,)))


def _asks_for_nothing(value: Any, spec: FieldSpec) -> bool:
    """Whether a field's value is an "off" one: its default, nothing, or a group that is switched off."""
    assert spec.mark is not None
    if isinstance(value, dict):
        return value.get("enabled") is False or not any(value.values())
    empty = value in ("", []) or (value is False and spec.default is not True)
    return empty or any(
        same_value(value, off) or (isinstance(value, int | float) and value == off)
        for off in (thaw(spec.default), *spec.mark.off)
    )


def _check_runtime_value(key: str, merged: Merged, checked: Checked, problems: Problems) -> None:
    """A value that only a run knows is kept, to be compared then."""
    annotation = FIELDS[key].annotation if key in FIELDS else RUNTIME[key].annotation
    try:
        converted = convert(merged.values[key], annotation)
    except Mismatch as mismatch:
        report(mismatch, (key,), merged, problems)
        return
    if converted is not None:
        checked.runtime[key] = converted


def _check_field(key: str, merged: Merged, checked: Checked, problems: Problems) -> None:
    value = merged.values[key]
    if key == "iteration" and merged.place((key,)) != Place(COMMAND_LINE):
        # Which checkpoint to load is said at the start of a run; a file can only expect one.
        _check_runtime_value(key, merged, checked, problems)
        return
    if value is None and (FIELDS[key].default is None or key == "precision"):
        return  # null is "not given"
    if key == "precision":
        value = PRECISION_NAMES.get(value, value) if isinstance(value, str) else value
    if key in _CASELESS and isinstance(value, str):
        value = _CASELESS[key].get(value.lower(), value)
    try:
        checked.values[key] = convert(value, FIELDS[key].annotation, merged.texts.get((key,)))
    except Mismatch as mismatch:
        report(mismatch, (key,), merged, problems)
