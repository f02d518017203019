"""A page of the documentation that a program writes: write it, or say whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_or_check(target: Path, made: Callable[[], str], *, script: str, about: str | None) -> int:
    """The command line of a script that writes a page. Returns its exit status.

    Args:
        target: the page.
        made: gives its text.
        script: path of the script, as it is typed.
        about: the script's docstring.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0] if about else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    options = parser.parse_args()
    text = made()
    if not options.check:
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target.relative_to(ROOT)}")
        return 0
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return 0
    print(f"{target.relative_to(ROOT)} is stale: run python {script}", file=sys.stderr)
    return 1
