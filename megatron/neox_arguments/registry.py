"""Every key there is: which section holds it, what type it has, what its default is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints

from megatron.neox_arguments import sections
from megatron.neox_arguments.known_keys import (
    ALIASES,
    IGNORED,
    REFUSED,
    RENAMED,
    RUNTIME,
    SHORTHANDS,
)
from megatron.neox_arguments.problems import closest

SECTIONS: dict[str, type[Any]] = {
    "parallelism": sections.ParallelismArgs,
    "batch": sections.BatchArgs,
    "model": sections.ModelArgs,
    "optim": sections.OptimArgs,
    "lr_schedule": sections.LRScheduleArgs,
    "tokenizer": sections.TokenizerArgs,
    "data": sections.DataArgs,
    "training": sections.TrainingArgs,
    "checkpointing": sections.CheckpointingArgs,
    "logging": sections.LoggingArgs,
    "textgen": sections.TextgenArgs,
    "launch": sections.LaunchArgs,
    "ds": sections.DeepSpeedArgs,
}


@dataclass(frozen=True)
class FieldSpec:
    """One field of one section."""

    section: str
    key: str
    annotation: Any
    default: Any


def _fields() -> dict[str, FieldSpec]:
    specs: dict[str, FieldSpec] = {}
    for name, cls in SECTIONS.items():
        hints = get_type_hints(cls, include_extras=True)
        for item in dataclasses.fields(cls):
            assert item.name not in specs, f"{item.name} is a field of two sections"
            specs[item.name] = FieldSpec(name, item.name, hints[item.name], item.default)
    return specs


FIELDS: dict[str, FieldSpec] = _fields()
KNOWN_KEYS: frozenset[str] = frozenset(
    {*FIELDS, *ALIASES, *IGNORED, *REFUSED, *RUNTIME, *SHORTHANDS}
)


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


def field_default(key: str) -> Any:
    """The default of a field."""
    return FIELDS[key].default
