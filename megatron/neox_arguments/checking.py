"""From merged values to typed ones: which keys are known, what each may hold, what follows from what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megatron.neox_arguments.derived import (
    PRECISION_NAMES,
    derive_precision,
    derive_zero_stage,
)
from megatron.neox_arguments.known_keys import RUNTIME, SHORTHANDS
from megatron.neox_arguments.merging import COMMAND_LINE, Merged, same_value
from megatron.neox_arguments.nested_keys import GROUPS, OPTIMIZER_PARAMS
from megatron.neox_arguments.problems import Place, Problems, closest, shown
from megatron.neox_arguments.registry import FIELDS, FieldSpec, suggestion
from megatron.neox_arguments.shorthands import fold_shorthands
from megatron.neox_arguments.typed import Ignored, Mismatch, choices_of, convert
from megatron.neox_arguments.values import thaw
from megatron.neox_arguments.yaml_source import KeyPath

# Fields whose names are taken in any case, as GPT-NeoX takes them.
_CASELESS: dict[str, dict[str, str]] = {
    key: {choice.lower(): choice for choice in choices_of(FIELDS[key].annotation)}
    for key in ("tokenizer_type", "optimizer_type")
}
_TYPED_AS_FIELDS = frozenset(SHORTHANDS.values())


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
    fold_shorthands(merged, problems)
    _check_groups(merged, problems)
    ignored: dict[str, list[str]] = {}
    for key in merged.values:
        if key in RUNTIME:
            _check_runtime_value(key, merged, checked, problems)
        elif key not in FIELDS:
            problems.add(key, f"unknown key; {suggestion(key)}", merged.place((key,)))
        elif FIELDS[key].mark is None:
            _check_field(key, merged, checked, problems)
        else:
            _check_marked(FIELDS[key], merged, checked, ignored, problems)
    for why, keys in ignored.items():
        checked.notes.append(f"ignored: {', '.join(keys)} ({why})")
    derive_precision(merged, checked.values, problems)
    derive_zero_stage(checked.values, checked.notes)
    if checked.values.get("max_position_embeddings") is None and "seq_length" in checked.values:
        checked.values["max_position_embeddings"] = checked.values["seq_length"]
    return checked


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
            _report(mismatch, (key,), merged, problems)
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
        _report(mismatch, (key,), merged, problems)
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
        _report(mismatch, (key,), merged, problems)


def _report(mismatch: Mismatch, path: KeyPath, merged: Merged, problems: Problems) -> None:
    path = (*path, *mismatch.path)
    field_key = str(path[0])
    shown_path = (merged.names.get(field_key, field_key), *path[1:])
    problems.add(".".join(map(str, shown_path)), str(mismatch), merged.place(path), field_key)


def _check_groups(merged: Merged, problems: Problems) -> None:
    """The keys inside DeepSpeed's groups, and their types."""
    for key, table in GROUPS.items():
        group = merged.values.get(key)
        if isinstance(group, dict):
            _check_group(group, table, (key,), merged, problems)
    optimizer = merged.values.get("optimizer")
    if isinstance(optimizer, dict) and isinstance(optimizer.get("params"), dict):
        kind = str(optimizer.get("type", "adam")).lower()
        if kind in OPTIMIZER_PARAMS:
            params = optimizer["params"]
            _check_group(params, OPTIMIZER_PARAMS[kind], ("optimizer", "params"), merged, problems)
            betas = params.get("betas")
            if isinstance(betas, list) and len(betas) != 2:
                problems.add(
                    "optimizer.params.betas",
                    f"found {shown(betas)}, expected two numbers",
                    merged.place(("optimizer", "params", "betas")),
                )


def _check_group(
    group: dict[str, Any], table: dict[str, Any], path: KeyPath, merged: Merged, problems: Problems
) -> None:
    for key, value in group.items():
        here = (*path, key)
        if key not in table:
            meant = closest(key, table)
            hint = (
                f"did you mean {meant}?"
                if meant
                else f"known here: {', '.join(sorted(table)[:12])}"
            )
            problems.add(".".join(map(str, here)), f"unknown key; {hint}", merged.place(here))
            continue
        try:
            group[key] = _plain(convert(value, table[key], merged.texts.get(here)), value)
        except Mismatch as mismatch:
            if here not in _TYPED_AS_FIELDS:  # else its short name's check says so
                _report(mismatch, here, merged, problems)


def _plain(converted: Any, written: Any) -> Any:
    """Whole floats that mean integers (5e8) become integers; everything else stays as written."""
    return converted if isinstance(converted, int) and isinstance(written, float) else written
