"""Two ranks that save to a disk that is full and to one that is read-only: both mounted for real.

Run as a program inside a private mount namespace (see ``test_real_disks.py``), with a folder to
mount in. Prints what each rank saw as JSON. The program itself needs neither torch nor DeepSpeed:
only its ranks import them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.ranks import run_ranks

if TYPE_CHECKING:
    from megatron.runtime.world import World

# A checkpoint of the tiny engine takes about 80 KiB here, most of it DeepSpeed's scripts.
FULL_DISK_SIZE = "128k"


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def save_to_bad_disks(world: World, folder: str) -> dict[str, Any]:
    from megatron.checkpointing import find_checkpoint
    from tests.checkpointing.engines import error_of, make_engine, save, train

    full, read_only = Path(folder) / "full", Path(folder) / "read-only"
    engine = make_engine(1)
    train(engine, world, 0, 1)
    for root in (full, read_only):
        save(engine, world, root, 1)
    seen: dict[str, Any] = {"full": error_of(lambda: save(engine, world, full, 2))}
    world.barrier()
    if world.is_first:
        mount("-o", "remount,ro", str(read_only))
    world.barrier()
    seen["read-only"] = error_of(lambda: save(engine, world, read_only, 2))
    for root in (full, read_only):
        names = sorted(os.listdir(root))
        seen[f"{root.name} afterwards"] = (names, find_checkpoint(root, world=world).step)
    world.barrier()
    if world.is_first:
        mount("-o", "remount,size=1m", str(full))
    world.barrier()
    save(engine, world, full, 2)
    seen["room again"] = find_checkpoint(full, world=world).step
    return seen


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for name, size in (("full", FULL_DISK_SIZE), ("read-only", "1m")):
        (place / name).mkdir()
        mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place / name))
    print(json.dumps(run_ranks(2, save_to_bad_disks, str(place))))
