"""Several files and the command line become one set of values, and each value keeps its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron.neox_arguments.known_keys import ALIASES, SHORTHANDS
from megatron.neox_arguments.problems import Place, Problems, shown
from megatron.neox_arguments.registry import FIELDS
from megatron.neox_arguments.typed import takes_text
from megatron.neox_arguments.yaml_source import (
    NULLS,
    Document,
    KeyPath,
    canonical,
    read_document,
)

COMMAND_LINE = "command line"


@dataclass
class Merged:
    """The values of all sources by canonical top-level key.

    Attributes:
        values: key to plain value; aliases are resolved.
        places: where each value, or each part of one, was written.
        texts: how plain scalars were written.
        names: the name under which each top-level key was written, where it was an alias.
        is_a_part: there is no model in it, and none is missing.
    """

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    is_a_part: bool = False

    def place(self, path: KeyPath) -> Place | None:
        """Where ``path``, or the nearest thing around it, was written."""
        return nearest_place(self.places, path)

    def drop(self, path: KeyPath) -> None:
        """Forget where ``path`` and everything below it was written, and how."""
        for table in (self.places, self.texts):
            for known in [known for known in table if known[: len(path)] == path]:
                del table[known]


def nearest_place(places: Mapping[KeyPath, Place], path: KeyPath) -> Place | None:
    """The place of ``path``, or of the nearest thing around it."""
    while path:
        if path in places:
            return places[path]
        path = path[:-1]
    return None


def same_value(left: Any, right: Any) -> bool:
    """Equality that keeps truth values and numbers apart (in Python, ``True == 1``)."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_value, left, right))
    return bool(left == right)


def merge(documents: Iterable[Document], deepspeed: Document | None, problems: Problems) -> Merged:
    """All documents in one. A key in two of them is a problem.

    Args:
        documents: the configuration files.
        deepspeed: a file in DeepSpeed's own form; it may repeat a key with the same value.
    """
    merged = Merged()
    for document in documents:
        _merge_one(merged, document, problems, may_repeat=False)
    if deepspeed is not None:
        _merge_one(merged, deepspeed, problems, may_repeat=True)
    return merged


def _merge_one(merged: Merged, document: Document, problems: Problems, *, may_repeat: bool) -> None:
    for written, value in document.values.items():
        key = ALIASES.get(written, written)
        here = document.place((written,))
        if key in merged.values and not (
            merged.values[key] is None and merged.names[key] != written
        ):
            first = merged.places[(key,)]
            other_name = merged.names.get(key, key) != written
            if (may_repeat or other_name) and same_value(value, merged.values[key]):
                continue
            if other_name and value is None:
                continue  # null is "not given"
            known_as = f" as {merged.names.get(key, key)}" if other_name else ""
            where = f" in {first}" if first.source else ""
            what = f"given twice, first{where}{known_as}"
            if may_repeat or other_name:
                what += f" with {shown(merged.values[key])}, here with {shown(value)}"
            problems.add(written, f"{what}: keep one", here)
            continue
        merged.values[key] = value
        merged.names[key] = written
        for path, place in document.places.items():
            if path[0] == written:
                merged.places[(key, *path[1:])] = place
        for path, text in document.texts.items():
            if path[0] == written:
                merged.texts[(key, *path[1:])] = text
        merged.places.setdefault((key,), here)


def document_from(mapping: Mapping[str, Any], problems: Problems, source: str = "") -> Document:
    """A document from Python values instead of a file; dicts and lists are copied."""
    document = Document(source)
    document.values = _copied(mapping, (), document, problems)
    return document


def _copied(value: Any, path: KeyPath, document: Document, problems: Problems) -> Any:
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for written, item in value.items():
            key = canonical(str(written))
            here = (*path, key)
            if key in result:
                problems.add(".".join(map(str, here)), f"given twice, here as {written}: keep one")
                continue
            result[key] = _copied(item, here, document, problems)
        return result
    if isinstance(value, list | tuple):
        return [
            _copied(item, (*path, index), document, problems) for index, item in enumerate(value)
        ]
    return value


def apply_overrides(merged: Merged, overrides: Iterable[str], problems: Problems) -> None:
    """Put ``key=value`` texts of the command line over what the files say.

    A dotted key reaches into a group (``optimizer.params.lr=1e-3``). Values are read as in YAML; a
    text field takes what is written as it stands. The same key twice is a problem.
    """
    seen: set[KeyPath] = set()
    for override in overrides:
        dotted, equals, text = override.partition("=")
        place = Place(COMMAND_LINE)
        path: KeyPath = tuple(canonical(part) for part in dotted.split("."))
        if not equals or not all(path):
            problems.add("", f"--set {override}: {_how_to_set(override)}", place)
            continue
        head = ALIASES.get(str(path[0]), str(path[0]))
        path = SHORTHANDS.get(head, (head,)) + path[1:] if len(path) == 1 else (head, *path[1:])
        if path in seen or _is_inside(merged.values, path, seen):
            problems.add(dotted, "given twice on the command line: keep one", place)
            continue
        undone = [inner for inner in seen if inner[: len(path)] == path]
        if undone:
            before = ".".join(map(str, undone[0]))
            text = f"undoes {before}, which stands before it: put it first, or keep one"
            problems.add(dotted, text, place)
            continue
        seen.add(path)
        value, texts, unreadable = _override_value(head if len(path) == 1 else "", text)
        if unreadable:
            problems.add(dotted, unreadable, place)
            continue
        if _put(merged.values, path, value, dotted, place, problems):
            merged.drop(path)
            _drop_shorthands(merged, path)
            merged.places[path] = place
            for depth in range(1, len(path)):
                merged.places.setdefault(path[:depth], place)  # groups that it has made
            for inner, written in texts.items():
                merged.texts[path + inner] = written


def _is_inside(values: Mapping[str, Any], path: KeyPath, given: set[KeyPath]) -> bool:
    """Whether one of the groups that were ``given`` whole has ``path``."""
    if not any(path[: len(outer)] == outer for outer in given):
        return False
    inside: Any = values
    for part in path:
        if not isinstance(inside, dict) or part not in inside:
            return False
        inside = inside[part]
    return True


def _how_to_set(override: str) -> str:
    key = override.partition("=")[0].strip()
    if "=" not in override and key:
        return f"the value is missing: write --set {key}=VALUE, with = and without a space"
    return "expected --set key=value"


def _override_value(key: str, text: str) -> tuple[Any, dict[KeyPath, str], str]:
    """The value of one override, how its plain scalars were written, and why it cannot be read."""
    wants_text = key in FIELDS and takes_text(FIELDS[key].annotation)
    if not text.strip() and not wants_text:
        return None, {}, "the value is empty: write it, or null for none"
    if wants_text and text not in NULLS and text[:1] not in ("'", '"'):
        return text, {}, ""
    problems = Problems()
    document = read_document(COMMAND_LINE, f"value: {text}", problems)
    if document.values.keys() != {"value"} or problems:
        ambiguous = problems.about("value")
        return None, {}, ambiguous or f"cannot read the value {shown(text)}: put it in quotes"
    texts = {path[1:]: written for path, written in document.texts.items()}
    return document.values["value"], texts, ""


def _drop_shorthands(merged: Merged, path: KeyPath) -> None:
    """A short name in a file gives way to the nested key that the command line has just set."""
    for short, nested in SHORTHANDS.items():
        shared = min(len(nested), len(path))
        if short not in merged.values or nested[:shared] != path[:shared]:
            continue
        inside: Any = merged.values
        for part in nested:
            inside = inside.get(part) if isinstance(inside, dict) else None
        if inside is not None:
            del merged.values[short]
            merged.drop((short,))


def _put(
    values: dict[str, Any], path: KeyPath, value: Any, dotted: str, place: Place, problems: Problems
) -> bool:
    """Set ``path`` in nested dicts, making the missing ones."""
    inside: Any = values
    for index, part in enumerate(path[:-1]):
        if inside.get(part) is None:
            inside[part] = {}
        inside = inside[part]
        if not isinstance(inside, dict):
            outer = ".".join(map(str, path[: index + 1]))
            problems.add(dotted, f"{outer} is {shown(inside)}, which holds no keys", place)
            return False
    inside[path[-1]] = value
    return True
