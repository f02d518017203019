"""From merged values to typed ones: which keys are known, what each may hold, what follows from what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megatron.neox_arguments.known_keys import IGNORED, REFUSED, RUNTIME, SHORTHANDS, OtherKey
from megatron.neox_arguments.merging import COMMAND_LINE, Merged, same_value
from megatron.neox_arguments.nested_keys import GROUPS, OPTIMIZER_PARAMS
from megatron.neox_arguments.problems import Place, Problems, closest, in_brackets, shown
from megatron.neox_arguments.registry import FIELDS, suggestion
from megatron.neox_arguments.typed import Mismatch, NonNegativeInt, convert
from megatron.neox_arguments.yaml_source import KeyPath

_PRECISION_NAMES = {
    "bf16": "bfloat16",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
}

RUNTIME_TYPES: dict[str, Any] = {
    **dict.fromkeys((*RUNTIME, "iteration"), NonNegativeInt | None),
    "is_pipe_parallel": bool | None,
}
_TYPED_AS_FIELDS = {path for key, path in SHORTHANDS.items() if key in FIELDS}


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
    _fold_shorthands(merged, problems)
    ignored: dict[str, list[str]] = {}
    for key, value in merged.values.items():
        if key in FIELDS:
            _check_field(key, merged, checked, problems)
        elif key in SHORTHANDS:
            pass  # folded into its group
        elif key in RUNTIME:
            _check_runtime_value(key, value, merged, checked, problems)
        elif key in IGNORED:
            if not _is_off(value, IGNORED[key]):
                ignored.setdefault(IGNORED[key].why, []).append(key)
        elif key in REFUSED:
            _check_refused(key, value, merged, problems)
        else:
            problems.add(key, f"unknown key; {suggestion(key)}", merged.place((key,)))
    for why, keys in ignored.items():
        checked.notes.append(f"ignored: {', '.join(keys)} ({why})")
    _check_groups(merged, problems)
    _derive_precision(merged, checked, problems)
    _derive_zero_stage(checked)
    if checked.values.get("max_position_embeddings") is None and "seq_length" in checked.values:
        checked.values["max_position_embeddings"] = checked.values["seq_length"]
    return checked


def _is_off(value: Any, key: OtherKey) -> bool:
    if isinstance(value, dict) and value.get("enabled") is False:
        return True
    return any(same_value(value, off) for off in key.off)


def _check_runtime_value(
    key: str, value: Any, merged: Merged, checked: Checked, problems: Problems
) -> None:
    """A value that only a run knows is kept, to be compared then."""
    try:
        converted = convert(value, RUNTIME_TYPES[key])
    except Mismatch as mismatch:
        _report(mismatch, (key,), merged, problems)
        return
    if converted is not None:
        checked.runtime[key] = converted


def _check_refused(key: str, value: Any, merged: Merged, problems: Problems) -> None:
    if not _is_off(value, REFUSED[key]):
        place = merged.place((key,))
        problems.add(key, f"found {shown(value)}: {REFUSED[key].why}", place)


def _check_field(key: str, merged: Merged, checked: Checked, problems: Problems) -> None:
    value = merged.values[key]
    if key == "iteration" and merged.place((key,)) != Place(COMMAND_LINE):
        # Which checkpoint to load is said at the start of a run; a file can only expect one.
        _check_runtime_value(key, value, merged, checked, problems)
        return
    if key == "precision" and isinstance(value, str):
        value = _PRECISION_NAMES.get(value, value)
    if key == "precision" and value is None:
        return
    if key == "optimizer_type" and isinstance(value, str):
        value = value.lower()
    try:
        checked.values[key] = convert(value, FIELDS[key].annotation, merged.texts.get((key,)))
    except Mismatch as mismatch:
        _report(mismatch, (key,), merged, problems)


def _report(mismatch: Mismatch, path: KeyPath, merged: Merged, problems: Problems) -> None:
    path = (*path, *mismatch.path)
    field_key = str(path[0])
    shown_path = (merged.names.get(field_key, field_key), *path[1:])
    problems.add(".".join(map(str, shown_path)), str(mismatch), merged.place(path), field_key)


def _fold_shorthands(merged: Merged, problems: Problems) -> None:
    """A flat key and the nested key that it is short for become one value, in both places."""
    for key, path in SHORTHANDS.items():
        group: Any = merged.values
        for part in path[:-1]:
            group = group.get(part) if isinstance(group, dict) else None
        nested = group.get(path[-1]) if isinstance(group, dict) else None
        flat = merged.values.get(key)
        if flat is None:
            if nested is not None:
                merged.values[key] = nested
                merged.names[key] = ".".join(path)
                place = merged.place(path)
                if place is not None:
                    merged.places[(key,)] = place
            continue
        as_text = [str(side).lower() if isinstance(side, str) else side for side in (flat, nested)]
        if nested is not None and not same_value(*as_text):
            first = in_brackets(merged.place(path))
            problems.add(
                key,
                f"found {shown(flat)}, but {'.'.join(path)} is {shown(nested)}{first}: keep one",
                merged.place((key,)),
            )
        elif nested is None:
            _put_nested(merged, path, flat, key)


def _put_nested(merged: Merged, path: tuple[str, ...], value: Any, key: str) -> None:
    group: Any = merged.values
    for part in path[:-1]:
        if group.get(part) is None:
            group[part] = {}
        group = group[part]
        if not isinstance(group, dict):
            return  # its own type check says so
    group[path[-1]] = value
    place = merged.place((key,))
    if place is not None:
        merged.places[path] = place


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
        if here in _TYPED_AS_FIELDS:
            continue  # checked under its short name
        try:
            group[key] = _plain(convert(value, table[key], merged.texts.get(here)), value)
        except Mismatch as mismatch:
            _report(mismatch, here, merged, problems)


def _plain(converted: Any, written: Any) -> Any:
    """Whole floats that mean integers (5e8) become integers; everything else stays as written."""
    return converted if isinstance(converted, int) and isinstance(written, float) else written


def _derive_precision(merged: Merged, checked: Checked, problems: Problems) -> None:
    """One precision out of ``precision`` and the switches of ``bf16`` and ``fp16``."""
    says: dict[str, str] = {}
    written = merged.values.get("precision")
    if isinstance(written, str):
        says["precision"] = _PRECISION_NAMES.get(written, written)
    for group, kind in (("fp16", "fp16"), ("bf16", "bfloat16")):
        switch = merged.values.get(group)
        enabled = switch.get("enabled") if isinstance(switch, dict) else None
        if enabled is True:
            says[f"{group}.enabled"] = kind
        elif enabled is False and says.get("precision") == kind:
            problems.add(
                "precision",
                f"is {kind}, but {group}.enabled is false{in_brackets(merged.place((group, 'enabled')))}",
                merged.place(("precision",)),
            )
    if len(set(says.values())) > 1:
        first = next(iter(says))
        parts = [
            f"{key} says {kind}{in_brackets(merged.place(tuple(key.split('.'))))}"
            for key, kind in says.items()
        ]
        problems.add(
            "precision",
            f"contradiction: {', '.join(parts)}: take one out, or set its enabled to false",
            merged.place(tuple(first.split("."))),
        )
    elif "fp16.enabled" in says and "precision" not in says:
        problems.add(
            "fp16.enabled",
            "fp16 is not supported yet: use precision: bfloat16, and take fp16 out or disable it",
            merged.place(("fp16", "enabled")),
        )
    elif "bf16.enabled" in says:
        checked.values["precision"] = "bfloat16"


def _derive_zero_stage(checked: Checked) -> None:
    stage = checked.values.get("zero_stage", 0)
    checked.values["zero_stage"] = stage
    if checked.values.get("precision") == "bfloat16" and stage == 0:
        checked.values["zero_stage"] = 1
        checked.notes.append(
            "zero_optimization.stage: 0 runs as 1, because DeepSpeed's stage 0 takes a wrong first Adam "
            "step in half precision"
        )
