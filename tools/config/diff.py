#!/usr/bin/env python
"""Compare two configurations, or a configuration and the one that a checkpoint was made with.

python tools/config/diff.py configs/125M.yml configs/350M.yml
python tools/config/diff.py configs/125M.yml,configs/local_setup.yml checkpoints
python tools/config/diff.py checkpoints/global_step1000 checkpoints/global_step2000

Files with commas between them are put together first, and --set is put over the right side, a checkpoint's
values too. A checkpoint is its folder, or the folder of all of them, whose latest counts. The status is 0
if nothing differs, 1 if something does, 2 if one cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import CheckpointError, NeoXError, run_door
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.differences import differences

# Where a checkpoint keeps the configuration as it was understood.
_EFFECTIVE = Path("configs") / "effective_config.json"


def flat_values(side: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a checkpoint's folder, or of files with commas between them, under ``overrides``.

    Raises:
        NeoXError: it cannot be read.
    """
    if Path(side).is_dir():
        values = values_of_checkpoint(Path(side))
        # Without overrides as they stand, whichever version of this project has written them.
        return NeoXArgs.from_dict(values, overrides=overrides).flat() if overrides else values
    try:
        return NeoXArgs.from_ymls(side.split(","), overrides, may_be_a_part=True).flat()
    except NeoXError as error:
        if "," in side or Path(side).suffix:
            raise
        raise NeoXError(f"{error}\n  nor is there a folder of checkpoints of this name") from None


def values_of_checkpoint(folder: Path) -> dict[str, Any]:
    """The values that a checkpoint, or the latest of a folder of them, was made with.

    Raises:
        CheckpointError: there is none.
    """
    latest = folder / "latest"
    path = (folder / latest.read_text().strip() if latest.is_file() else folder) / _EFFECTIVE
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}\n"
            "  to do: name a checkpoint of this project (global_stepN), or the folder of them"
        ) from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: holds no configuration")
    return values


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("left", help="files with commas between them, or a checkpoint")
    parser.add_argument("right", help="the same")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    options = parser.parse_args()
    found = differences(flat_values(options.left), flat_values(options.right, options.overrides))
    for difference in found:
        print(difference)
    return 1 if found else 0


if __name__ == "__main__":
    run_door(main)
