"""From what a file says to what a field holds: one small interpreter of the fields' annotations.

A field's type is its annotation, nothing else: ``int``, ``float``, ``bool``, ``str``, ``Literal``,
``dict[str, Any]``, ``tuple[X, ...]``, unions with ``None``, and through ``Annotated`` :class:`Range`,
:class:`NotYet`, and the two marks of a field that does not act, :class:`Ignored` and :class:`Refused`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from megatron.neox_arguments.problems import closest, shown
from megatron.neox_arguments.values import freeze

# Above this a float no longer holds every whole number.
_MAX_EXACT = 2**53


@dataclass(frozen=True)
class Range:
    """Bounds of a number: ``low ≤ x ≤ high``; with ``open_low``/``open_high`` the bound itself is out."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        parts = []
        if self.low != -math.inf:
            parts.append(f"{'above' if self.open_low else 'from'} {self.low:.10g}")
        if self.high != math.inf:
            parts.append(f"{'below' if self.open_high else 'up to'} {self.high:.10g}")
        return " ".join(parts)


@dataclass(frozen=True)
class NotYet:
    """Choices that GPT-NeoX documents and this project lacks: known, and refused as such."""

    choices: tuple[str, ...]


@dataclass(frozen=True)
class Ignored:
    """Marks a field that changes nothing here: named once at the start, with the reason.

    Attributes:
        why: the reason.
        off: values that ask for nothing, beside the default, null, and an empty or disabled group.
    """

    why: str
    off: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Refused:
    """Marks a field that asks for what is not here: any value that asks for something stops the start.

    Attributes:
        why: what is not here, and what to do instead.
        off: values that ask for nothing, beside the default, null, and an empty or disabled group.
    """

    why: str
    off: tuple[Any, ...] = ()


PositiveInt = Annotated[int, Range(low=1)]
NonNegativeInt = Annotated[int, Range(low=0)]
PositiveFloat = Annotated[float, Range(low=0, open_low=True)]
NonNegativeFloat = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, high=1)]
Dropout = Annotated[float, Range(low=0, high=1, open_high=True)]


class Mismatch(Exception):
    """A value does not fit. ``path`` leads from the field to the part that does not."""

    def __init__(self, text: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(text)
        self.path = path


class _WrongType(Mismatch):
    """Found one thing, expected another; the outermost annotation says best what was expected."""

    def __init__(self, value: Any, annotation: Any, hint: str = "") -> None:
        super().__init__(f"found {shown(value)}, expected {describe(annotation)}{hint}")
        self.hint = hint


def convert(value: Any, annotation: Any, text: str | None = None) -> Any:
    """``value`` as ``annotation`` wants it, frozen.

    Args:
        value: what the YAML said.
        annotation: the field's type.
        text: how a plain scalar was written; a text field takes it as it stands.

    Raises:
        Mismatch: it does not fit; the text says what was found and what was expected.
    """
    try:
        return _convert(value, annotation, text)
    except _WrongType as wrong:
        raise _WrongType(value, annotation, wrong.hint) from None


def _convert(value: Any, annotation: Any, text: str | None) -> Any:
    origin = get_origin(annotation)
    if annotation is Any:
        return freeze(value)
    if origin is Annotated:
        return _convert_annotated(value, annotation, text)
    if origin in (Union, types.UnionType):
        return _convert_union(value, annotation, text)
    if origin is Literal:
        return _convert_choice(value, get_args(annotation), ())
    if origin is tuple:
        return _convert_list(value, annotation)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _WrongType(value, annotation)
        return freeze(value)
    return _convert_scalar(value, annotation, text)


def _convert_scalar(value: Any, annotation: Any, text: str | None) -> Any:
    if annotation is bool and isinstance(value, bool):
        return value
    if annotation is int and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_EXACT:
            return int(value)  # 1e6
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    if annotation is str:
        if isinstance(value, str):
            return value
        if text is not None and value is not None:
            return text
    hint = ""
    if annotation is float and isinstance(value, float) and not math.isfinite(value):
        hint = ", neither infinite nor nan"
    if annotation in (int, float) and isinstance(value, str) and _is_number(value):
        hint = ": take the quotes off"
    raise _WrongType(value, annotation, hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _convert_annotated(value: Any, annotation: Any, text: str | None) -> Any:
    base, *marks = get_args(annotation)
    for mark in marks:
        if isinstance(mark, NotYet):
            return _convert_choice(value, get_args(base), mark.choices)
    result = convert(value, base, text)
    for mark in marks:
        if isinstance(mark, Range) and not mark.holds(result):
            raise _WrongType(value, annotation)
    return result


def _convert_union(value: Any, annotation: Any, text: str | None) -> Any:
    members = get_args(annotation)
    kinds = [member for member in members if member is not type(None)]
    # Optional texts are paths and names: an empty one is the current folder to some code and "not
    # given" to other code.
    if type(None) in members and (value is None or (value == "" and kinds == [str])):
        return None
    if len(kinds) == 1:
        return convert(value, kinds[0], text)
    for kind in kinds:
        try:
            return convert(value, kind, text)
        except Mismatch:
            continue
    raise _WrongType(value, annotation)


def _convert_choice(value: Any, choices: tuple[Any, ...], not_yet: tuple[str, ...]) -> Any:
    if value in choices:
        return value
    names = ", ".join(map(str, choices))
    if value in not_yet:
        raise Mismatch(f"{value} is not supported yet; choose one of {names}")
    meant = closest(value, [str(choice) for choice in choices]) if isinstance(value, str) else None
    hint = f"; did you mean {meant}?" if meant else ""
    raise Mismatch(f"found {shown(value)}, expected one of {names}{hint}")


def _convert_list(value: Any, annotation: Any) -> tuple[Any, ...]:
    item_type = get_args(annotation)[0]
    if not isinstance(value, list | tuple):
        raise _WrongType(value, annotation)
    items = []
    for index, item in enumerate(value):
        try:
            items.append(convert(item, item_type))
        except Mismatch as mismatch:
            raise Mismatch(str(mismatch), (index, *mismatch.path)) from None
    return tuple(items)


_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Any: "any value",
    type(None): "null",
}


def describe(annotation: Any) -> str:
    """An annotation in words: ``a whole number from 1, or null``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *marks = get_args(annotation)
        bounds = " ".join(str(mark) for mark in marks if isinstance(mark, Range))
        return f"{describe(base)} {bounds}".strip()
    if origin in (Union, types.UnionType):
        return ", or ".join(describe(member) for member in get_args(annotation))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(annotation)))
    if origin is tuple:
        return f"a list of ({describe(get_args(annotation)[0])})"
    if origin in (dict, Mapping):
        return "a group of keys { ... }"
    return _NAMES.get(annotation, str(annotation))


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """All values that a field of choices may have, and those that are known but not here yet."""
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        later = [choice for m in marks if isinstance(m, NotYet) for choice in m.choices]
        return (*choices_of(base), *later)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(choice for member in get_args(annotation) for choice in choices_of(member))
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def takes_text(annotation: Any) -> bool:
    """Whether a field of this type is a text (or null)."""
    if get_origin(annotation) is Annotated:
        return takes_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return set(get_args(annotation)) == {str, type(None)}
    return annotation is str
