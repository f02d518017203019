#!/usr/bin/env python
"""Write configs/neox_arguments.md from the fields' own types, defaults and texts.

python tools/config/write_docs.py            # write it
python tools/config/write_docs.py --check    # only say whether it is up to date
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.neox_arguments.known_keys import ALIASES, RUNTIME, SHORTHANDS  # noqa: E402 - needs ROOT
from megatron.neox_arguments.registry import FIELDS, SECTIONS, FieldSpec  # noqa: E402
from megatron.neox_arguments.typed import describe  # noqa: E402
from megatron.neox_arguments.values import thaw  # noqa: E402
from tools.config.generated_page import write_or_check  # noqa: E402

TARGET = ROOT / "configs" / "neox_arguments.md"

HEAD = """\
# Every key

Made by `python tools/config/write_docs.py` from `megatron/neox_arguments/`; do not edit.

A key of GPT-NeoX is in one of three states here. It *works*. It is *ignored*: accepted, and named once at the
start with the reason. Or it is *refused*: it asks for something that is not here, and the run does not start.
A key that does not work may always have its default, `null`, or be a group that is empty or says
`enabled: false`: that asks for nothing, and nothing is said. Keys may be written with `-` or `_`.
"""


def field_texts(cls: type[Any]) -> dict[str, str]:
    """The text below each field of a section and of the classes it is put together from.

    Raises:
        SystemExit: a field has none.
    """
    texts: dict[str, str] = {}
    for base in cls.__bases__:
        if dataclasses.is_dataclass(base):
            texts |= field_texts(base)
    definition = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(definition, ast.ClassDef)
    for item, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if not is_text:
                raise SystemExit(f"{cls.__name__}.{item.target.id} has no text below it")
            assert isinstance(following, ast.Expr)
            assert isinstance(following.value, ast.Constant)
            texts[item.target.id] = " ".join(str(following.value.value).split())
    return texts


def shown_default(value: Any) -> str:
    """A default as YAML would have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(thaw(value)).replace("'", '"')


def section_table(name: str, cls: type[Any]) -> list[str]:
    """One section as a table."""
    summary = " ".join((inspect.getdoc(cls) or "").split())
    lines = [
        f"## {name}",
        "",
        summary,
        "",
        "| key | state | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    texts = field_texts(cls)
    for item in dataclasses.fields(cls):
        spec = FIELDS[item.name]
        kind = describe(spec.annotation).replace(", or null", "")
        text = f"{texts[item.name]} {_why(spec)}".rstrip()
        cells = (f"`{item.name}`", spec.state, kind, f"`{shown_default(item.default)}`", text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _why(spec: FieldSpec) -> str:
    """Why a field does not work, as a sentence."""
    if spec.mark is None:
        return ""
    return f"{spec.state.capitalize()}: {spec.mark.why}."


def document() -> str:
    """The whole page."""
    lines = [HEAD]
    for name, cls in SECTIONS.items():
        lines += section_table(name, cls)
    lines += ["## other names", "", "They work, as the key that they stand for.", ""]
    lines += ["| key | the same as |", "|---|---|"]
    lines += [f"| `{alias}` | `{key}` |" for alias, key in ALIASES.items()]
    lines += [f"| `{key}` | `{'.'.join(path)}` |" for key, path in SHORTHANDS.items()]
    lines += ["", "## known at run time only", ""]
    lines += ["One that is written in a file is compared with the run, not obeyed.", ""]
    lines += ["| key | state | type | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{key}` | works | {describe(value.annotation)} | {value.text} |"
        for key, value in RUNTIME.items()
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    return write_or_check(TARGET, document, script="tools/config/write_docs.py", about=__doc__)


if __name__ == "__main__":
    sys.exit(main())
