"""Where two configurations differ, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megatron.neox_arguments.known_keys import SHORTHANDS
from megatron.neox_arguments.merging import same_value
from megatron.neox_arguments.problems import shown

_NESTED_TWINS = frozenset(SHORTHANDS.values())
_ABSENT: Any = object()


@dataclass(frozen=True)
class Difference:
    """One key, dotted for nested ones, and its value on either side in words."""

    key: str
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.key}: {self.left} → {self.right}"


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """The keys in which two results of :meth:`NeoXArgs.flat` differ, in alphabetical order.

    A nested key that a flat one is short for is shown under the flat one's name only.
    """
    ours, theirs = dict(_leaves(left, ())), dict(_leaves(right, ()))
    return [
        Difference(".".join(path), *(_words(side.get(path, _ABSENT)) for side in (ours, theirs)))
        for path in sorted(ours.keys() | theirs.keys())
        if path not in _NESTED_TWINS
        and not same_value(ours.get(path, _ABSENT), theirs.get(path, _ABSENT))
    ]


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    else:
        yield path, value


def _words(value: Any) -> str:
    return "(not there)" if value is _ABSENT else shown(value)
