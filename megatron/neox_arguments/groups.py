"""The keys inside DeepSpeed's groups: known by name, and of the right type, at every depth."""

from __future__ import annotations

from typing import Any

from megatron.neox_arguments.known_keys import RENAMED, RENAMED_INSIDE, SHORTHANDS
from megatron.neox_arguments.merging import Merged
from megatron.neox_arguments.nested_keys import GROUPS, OPTIMIZER_PARAMS
from megatron.neox_arguments.nested_services import (
    NOT_HERE,
    REMOVED_FROM_DEEPSPEED,
    REMOVED_FROM_ZERO,
)
from megatron.neox_arguments.problems import Problems, closest, shown
from megatron.neox_arguments.registry import KNOWN_KEYS
from megatron.neox_arguments.typed import Mismatch, convert
from megatron.neox_arguments.yaml_source import KeyPath

_TYPED_AS_FIELDS = frozenset(SHORTHANDS.values())


def check_groups(merged: Merged, problems: Problems) -> None:
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
            hint = _hint(key, table, path)
            problems.add(".".join(map(str, here)), hint, merged.place(here))
            continue
        if isinstance(table[key], dict):
            _check_inner(value, table[key], here, merged, problems)
            continue
        try:
            group[key] = _plain(convert(value, table[key], merged.texts.get(here)), value)
        except Mismatch as mismatch:
            if here not in _TYPED_AS_FIELDS:  # else its short name's check says so
                report(mismatch, here, merged, problems)


_REMOVED_KEYS: dict[KeyPath, frozenset[str]] = {
    ("deepspeed_extra_args",): REMOVED_FROM_DEEPSPEED,
    ("zero_optimization",): REMOVED_FROM_ZERO,
}


def _hint(key: str, table: dict[str, Any], path: KeyPath) -> str:
    """What to say about a key that is not in the group ``path``."""
    if key in _REMOVED_KEYS.get(path, ()):
        return "DeepSpeed no longer has it: take it out"
    if path == ("deepspeed_extra_args",):
        if key in KNOWN_KEYS:
            return "it is a key of its own here: write it at the top level"
        if key in NOT_HERE:
            return "DeepSpeed's own is not supported here: take it out"
    meant = _meant_inside(key, table, path)
    if meant:
        return f"unknown key; did you mean {meant}?"
    return f"unknown key; known here: {', '.join(sorted(table)[:12])}"


def _meant_inside(key: str, table: dict[str, Any], path: KeyPath) -> str | None:
    """The key of the group ``path`` that an unknown ``key`` most probably means, if any is near enough."""
    # By its short name, or by others' for that; a group further in may hold it.
    nested = SHORTHANDS.get(RENAMED.get(key, key), ())
    if nested[: len(path)] == path:
        return ".".join(nested[len(path) :])
    others = {**RENAMED, **RENAMED_INSIDE}
    words = {name: name for name in table} | {
        name: meant for name, meant in others.items() if meant in table
    }
    return words.get(closest(key, words) or "")


def _check_inner(
    value: Any, table: dict[str, Any], path: KeyPath, merged: Merged, problems: Problems
) -> None:
    """A group inside a group."""
    if isinstance(value, dict):
        _check_group(value, table, path, merged, problems)
    elif value is not None:
        text = f"found {shown(value)}, expected a group of keys {{ ... }}"
        problems.add(".".join(map(str, path)), text, merged.place(path))


def _plain(converted: Any, written: Any) -> Any:
    """Whole floats that mean integers (5e8) become integers; everything else stays as written."""
    return converted if isinstance(converted, int) and isinstance(written, float) else written


def report(mismatch: Mismatch, path: KeyPath, merged: Merged, problems: Problems) -> None:
    """Note that what stands at ``path`` does not fit, under the name that it was written with."""
    path = (*path, *mismatch.path)
    field_key = str(path[0])
    shown_path = (merged.names.get(field_key, field_key), *path[1:])
    problems.add(".".join(map(str, shown_path)), str(mismatch), merged.place(path), field_key)
