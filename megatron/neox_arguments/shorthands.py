"""A flat key and the nested key that it is short for become one value, in both places."""

from __future__ import annotations

from typing import Any

from megatron.neox_arguments.known_keys import SHORTHANDS
from megatron.neox_arguments.merging import Merged, same_value
from megatron.neox_arguments.problems import Problems, in_brackets, shown


def fold_shorthands(merged: Merged, problems: Problems) -> None:
    """Give each flat key of ``SHORTHANDS`` and its nested key the value that one of them has.

    What they contradict each other in is a problem.
    """
    for key, path in SHORTHANDS.items():
        nested = _inside(merged.values, path)
        flat = merged.values.get(key)
        if flat is None:
            _take_nested(merged, key, path, nested)
        elif nested is None:
            _put_nested(merged, path, flat, key)
        elif not same_value(*(_without_case(side) for side in (flat, nested))):
            first = in_brackets(merged.place(path))
            problems.add(
                key,
                f"found {shown(flat)}, but {'.'.join(path)} is {shown(nested)}{first}: keep one",
                merged.place((key,)),
            )


def complete_groups(values: dict[str, Any]) -> None:
    """Put each short name's value into its group too, where the group is silent about it."""
    for key, path in SHORTHANDS.items():
        if values.get(key) is None or _inside(values, path) is not None:
            continue
        group = values
        for part in path[:-1]:
            group[part] = group.get(part) or {}
            group = group[part]
        group[path[-1]] = values[key]


def _inside(values: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _without_case(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _take_nested(merged: Merged, key: str, path: tuple[str, ...], nested: Any) -> None:
    if nested is None:
        merged.values.pop(
            key, None
        )  # null is "not given", there too: DeepSpeed would take it for a value
        group = _inside(merged.values, path[:-1])
        if isinstance(group, dict):
            group.pop(path[-1], None)
        return
    merged.values[key] = nested
    merged.names[key] = ".".join(path)
    place = merged.place(path)
    if place is not None:
        merged.places[(key,)] = place


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
