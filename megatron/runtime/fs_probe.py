"""Is it really one file system? Asked at the start, because the answer decides who builds for whom.

``use_shared_fs`` is easily set wrong, and wrong it costs an hour of waiting for a file that can
never appear, or many times the disk traffic. A file with a name that nobody has used before tells.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from megatron.errors import BarrierError
from megatron.logging import get_logger
from megatron.runtime.fs_barrier import PROBE_PREFIX, list_folder
from megatron.runtime.world import World

log = get_logger(__name__)

_PATIENCE: Final = 20.0  # seconds that a network file system may take to show a new name
_PERIOD: Final = 0.5


def probe_file_systems(
    root: Path, world: World, *, use_shared_fs: bool, make_parents: bool = False
) -> None:
    """Check that the nodes share ``root``, or notice that they do although they need not.

    All ranks call this. With one node, or where ``root`` cannot be written, nothing is asked.

    Raises:
        BarrierError: on all ranks: ``use_shared_fs`` is true, but a node does not see ``root``.
    """
    if world.num_nodes == 1:
        return
    writes = world.is_first if use_shared_fs else world.is_local_first
    mine = _leave_file(root, make_parents) if writes else None
    left = world.all_gather((world.node_rank, mine))
    others = {name for node, name in left if name is not None and node != world.node_rank}
    seen: set[str] = set()
    if world.is_local_first:  # one look per node
        seen = _look(root, others, _PATIENCE if use_shared_fs else _PERIOD)
    reports = world.all_gather((world.node_rank, world.hostname, bool(seen)))
    if mine is not None:
        with suppress(OSError):  # at worst an empty file stays, until a builder tidies up
            (root / mine).unlink()
    sharing = {node for node, _, sees in reports if sees}
    if not use_shared_fs:
        if world.is_first and sharing:
            numbers = ", ".join(map(str, sorted(sharing)))
            log.info(
                "%s is one folder for the nodes %s: with use_shared_fs: true its index would be "
                "built once",
                root,
                numbers,
            )
        return
    first_node, first_name = left[0]
    blind = {node: host for node, host, _ in reports if node not in sharing | {first_node}}
    if blind and first_name is not None:
        nodes = ", ".join(f"node {node} ({host})" for node, host in sorted(blind.items()))
        raise BarrierError(
            f"{root.absolute()}: is not the same folder on all nodes\n"
            f"  found: {nodes} cannot see a file that node {first_node} has written there\n"
            "  expected: one shared file system, because use_shared_fs is true\n"
            "  to do: set use_shared_fs: false if every node has its own disk, with the data on each; "
            "else mount the same file system at this path",
            everywhere=True,
        )


def _leave_file(root: Path, make_parents: bool) -> str | None:
    """Make a file with a new name in ``root``; None where that cannot be written."""
    name = PROBE_PREFIX + uuid.uuid4().hex
    try:
        root.mkdir(parents=make_parents, exist_ok=True)
        (root / name).touch()
    except OSError:
        return None
    return name


def _look(root: Path, wanted: set[str], patience: float) -> set[str]:
    """Those of ``wanted`` that appear in ``root`` within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        seen = wanted & list_folder(root)
        if seen == wanted or time.monotonic() >= deadline:
            return seen
        time.sleep(_PERIOD)
