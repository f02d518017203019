#!/usr/bin/env python3
"""Copy those rows of a .jsonl file whose `meta` has a given value: the plays out of the corpus, say.

    python tools/quickstart/select_rows.py tools/quickstart/corpus.jsonl plays.jsonl \\
        license="public domain texts"
"""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("condition", metavar="FIELD=VALUE")
    arguments = parser.parse_args()
    field, equals, value = arguments.condition.partition("=")
    if not equals:
        parser.error(f"expected FIELD=VALUE, found {arguments.condition}")
    selected = select_rows(arguments.corpus, arguments.output, field, value)
    if not selected:
        arguments.output.unlink()
        sys.exit(f"{arguments.corpus}: no row's meta has {field} = {value!r}; nothing is written")
    print(f"{arguments.output}: {selected} rows")


if __name__ == "__main__":
    main()
