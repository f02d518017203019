#!/usr/bin/env python3
"""Copy those rows of a .jsonl file whose `meta` has a given value: the plays out of the corpus, say.

    python tools/quickstart/select_rows.py tools/quickstart/corpus.jsonl plays.jsonl \\
        license="public domain texts"
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def select_rows(corpus: Path, output: Path, field: str, value: str) -> int:
    """Copy the lines of ``corpus`` with ``meta[field] == value``, as they are and in their order.

    ``output`` appears when it is whole; its folder is made.

    Returns:
        The number of lines copied.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    selected = 0
    with open(corpus, "rb") as lines, open(partial, "wb") as kept:
        for line in lines:
            if json.loads(line)["meta"].get(field) == value:
                kept.write(line)
                selected += 1
    partial.replace(output)
    return selected


def main() -> None:
    if len(sys.argv) != 4 or "=" not in sys.argv[3]:
        sys.exit(f"usage: {sys.argv[0]} CORPUS OUTPUT FIELD=VALUE")
    corpus, output, condition = sys.argv[1:]
    field, _, value = condition.partition("=")
    selected = select_rows(Path(corpus), Path(output), field, value)
    if not selected:
        Path(output).unlink()
        sys.exit(f"{corpus}: no row's meta has {field} = {value!r}; nothing is written")
    print(f"{output}: {selected} rows")


if __name__ == "__main__":
    main()
