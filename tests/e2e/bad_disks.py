"""Training runs that save to a disk which fills up, gets room again, and is made read-only.

Run as a program inside a private mount namespace (see ``test_bad_disks.py``), with an empty folder
to work in. Prints how each run ended and what was on the disk then, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.checkpointing.real_disks import mount
from tests.support.doors import door
from tests.support.tiny import tiny_config, write_tokens

# A checkpoint of the tiny model takes a little more than half of it.
DISK_SIZE = "1800k"


def train(folder: Path, *changes: str) -> dict[str, Any]:
    options = [word for change in changes for word in ("--set", change)]
    done = door("train.py", "--config-file", "tiny.yml", *options, folder=folder)
    return asdict(done) | {"disk": sorted(os.listdir(folder / "disk"))}


def main(folder: Path) -> None:
    write_tokens(folder / "data" / "tiny")
    places = {"save": "disk", "load": "disk", "log_dir": "logs"}
    steps = {"train_iters": 4, "lr_decay_iters": 4, "checkpoint_factor": 2, "eval_iters": 0}
    (folder / "tiny.yml").write_text(json.dumps(tiny_config(Path(), **places, **steps)))
    (folder / "disk").mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder / "disk"))
    ends = {"full": train(folder)}
    mount("-o", "remount,size=8m", str(folder / "disk"))
    ends["room again"] = train(folder)
    mount("-o", "remount,ro", str(folder / "disk"))
    ends["read-only"] = train(folder, "train_iters=6")
    ends["read-only, for metrics too"] = train(folder, "train_iters=6", "log_dir=disk")
    ends["read-only, but done"] = train(folder)
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
