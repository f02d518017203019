"""``train.py`` that also writes down what it reads: a program, started in its place.

Each rank adds a line for each step to ``rank<N>.jsonl`` in the folder that :data:`READS` names: the
step's first sample and the rank's tokens, ``[accumulation, micro-batch, tokens]``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
READS: Final = "NEOX_TEST_READS"  # environment variable


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from megatron.data.loader import StepLoader
    from megatron.data.step_batch import StepBatch

    folder = Path(os.environ[READS])
    folder.mkdir(parents=True, exist_ok=True)
    given = StepLoader.__next__

    def recorded(loader: StepLoader) -> StepBatch:
        batch = given(loader)
        line = {"first": batch.first_sample, "tokens": batch.tokens.tolist()}
        with (folder / f"rank{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        return batch

    StepLoader.__next__ = recorded  # type: ignore[method-assign]
    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")


def samples_read(folder: Path) -> dict[int, list[list[int]]]:
    """What all ranks have read: the step's first sample → its samples in order, as tokens."""
    steps: dict[int, list[list[list[list[int]]]]] = {}
    for path in sorted(folder.glob("rank*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            steps.setdefault(line["first"], []).append(line["tokens"])
    return {
        first: [sample for micro in zip(*ranks, strict=True) for part in micro for sample in part]
        for first, ranks in sorted(steps.items())
    }


if __name__ == "__main__":
    main()
