"""GPT-NeoX's configuration as facts: names, defaults and choices (``tests/assets/neox_fields.tsv``)."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parents[1] / "assets" / "neox_fields.tsv"


@dataclass(frozen=True)
class NeoxField:
    """One field of GPT-NeoX: its default, and the choices that it documents (none: any value)."""

    name: str
    default: Any
    choices: tuple[str, ...]


def neox_fields() -> dict[str, NeoxField]:
    """All fields by name."""
    with _TABLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {
        row["field"]: NeoxField(
            row["field"],
            json.loads(row["default"]),
            tuple(filter(None, row["choices"].split(","))),
        )
        for row in rows
    }
