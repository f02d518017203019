"""Every key there is: which section holds it, what type it has, what its default is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from megatron.neox_arguments import sections
from megatron.neox_arguments.known_keys import ALIASES, RENAMED, RUNTIME
from megatron.neox_arguments.problems import closest
from megatron.neox_arguments.typed import Ignored, Refused

SECTIONS: dict[str, type[Any]] = get_type_hints(sections.Sections)


@dataclass(frozen=True)
class FieldSpec:
    """One field of one section. ``mark`` is None for a field that works."""

    section: str
    key: str
    annotation: Any
    default: Any
    mark: Ignored | Refused | None = None

    @property
    def state(self) -> Literal["works", "ignored", "refused"]:
        """What a value other than "off" does."""
        if self.mark is None:
            return "works"
        return "ignored" if isinstance(self.mark, Ignored) else "refused"


def _fields() -> dict[str, FieldSpec]:
    specs: dict[str, FieldSpec] = {}
    for name, cls in SECTIONS.items():
        hints = get_type_hints(cls, include_extras=True)
        for item in dataclasses.fields(cls):
            assert item.name not in specs, f"{item.name} is a field of two sections"
            annotation = hints[item.name]
            specs[item.name] = FieldSpec(
                name, item.name, annotation, item.default, _mark(annotation)
            )
    return specs


def _mark(annotation: Any) -> Ignored | Refused | None:
    if get_origin(annotation) is Annotated:
        return next((m for m in get_args(annotation) if isinstance(m, Ignored | Refused)), None)
    return None


FIELDS: dict[str, FieldSpec] = _fields()
KNOWN_KEYS: frozenset[str] = frozenset({*FIELDS, *ALIASES, *RUNTIME})


def meant_key(key: str) -> str | None:
    """The key that an unknown ``key`` most probably means, if any is near enough."""
    if key in RENAMED:
        return RENAMED[key]
    return closest(key, KNOWN_KEYS) or RENAMED.get(closest(key, RENAMED) or "")


def suggestion(key: str) -> str:
    """What to say after an unknown ``key``."""
    if key in RENAMED:
        return f"here it is called {RENAMED[key]}"
    meant = meant_key(key)
    return f"did you mean {meant}?" if meant else "configs/neox_arguments.md lists all keys"
