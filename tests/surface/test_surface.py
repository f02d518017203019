"""Protects what others rely on: nothing of it changes without a line in CHANGELOG.md.

The lists are those of the last release (``public_surface.json``); what differs from them has to be
named, in backticks, in the section *Unreleased*.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.surface.collect import EXPECTED_NAMES, FROZEN, in_a_process_of_its_own

ROOT = Path(__file__).resolve().parents[2]


def unreleased() -> str:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return text.split("\n## Unreleased\n")[1].split("\n## ")[0]


def unnamed(
    frozen: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]], told: str
) -> list[str]:
    """What differs and is not told, a line each."""
    lines = []
    for part in sorted({*frozen, *found}):
        before, now = frozen.get(part, {}), found.get(part, {})
        for name in sorted({*before, *now}):
            old, new = before.get(name, "nothing"), now.get(name, "nothing")
            if isinstance(old, list) and isinstance(new, list):
                changed = sorted(set(old) ^ set(new))
                lines += [f"{part}: {name}: {x}" for x in changed if f"`{x}`" not in told]
            elif old != new and f"`{name}`" not in told:
                lines.append(f"{part}: {name}: {old} → {new}")
    return lines


@pytest.mark.ranks
def test_whatever_changes_is_told() -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    found = in_a_process_of_its_own()
    assert all(len(part) > 1 for part in found.values())
    lines = unnamed(frozen, found, unreleased())
    assert not lines, (
        "this changes what others rely on. Is it meant? Then say it in CHANGELOG.md, section Unreleased, "
        "with these names in backticks and what users have to do:\n" + "\n".join(lines)
    )


def test_a_change_is_seen_and_a_told_one_passes() -> None:
    frozen = {"config keys": {"a": "int = 1", "b": "int"}, "options": {"train.py": ["-x", "-y"]}}
    found = {"config keys": {"a": "int = 2", "c": "int"}, "options": {"train.py": ["-x", "-z"]}}
    lines = unnamed(frozen, found, "")
    assert [line.split(": ")[1:3] for line in lines] == [
        ["a", "int = 1 → int = 2"],
        ["b", "int → nothing"],
        ["c", "nothing → int"],
        ["train.py", "-y"],
        ["train.py", "-z"],
    ]
    assert unnamed(frozen, found, "`a`, `b`, `c`, `-y` and `-z`") == []


@pytest.mark.parametrize("name", EXPECTED_NAMES)
def test_a_user_of_gpt_neox_finds_it(name: str) -> None:
    parts = name.split(".")
    modules = [part for part in parts if part.islower() and part != parts[-1]]
    found: Any = importlib.import_module(".".join(modules))
    for part in parts[len(modules) :]:
        found = getattr(found, part)
    assert callable(found)
