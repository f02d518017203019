"""Is it really one file system? Asked at the start, because the answer decides who builds for whom.

``use_shared_fs`` is easily set wrong, and wrong it costs an hour of waiting for a file that can
never appear, or many times the disk traffic; where checkpoints go, it costs all that was trained up to the
first of them. A file with a name that nobody has used before tells.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from megatron.errors import BarrierError
from megatron.logging import get_logger
from megatron.runtime.file_systems import is_of_one_host
from megatron.runtime.leftovers import PROBE_PREFIX, list_folder
from megatron.runtime.world import World

log = get_logger(__name__)

_PATIENCE: Final = 20.0  # seconds that a network file system may take to show a new name
_PERIOD: Final = 0.5


@dataclass(frozen=True)
class Sight:
    """Which nodes see in a folder what other nodes write there.

    Attributes:
        writers: the nodes that could write.
        sharing: the nodes that have seen a file of another one.
        hosts: name by number of the node.
    """

    writers: frozenset[int]
    sharing: frozenset[int]
    hosts: Mapping[int, str]

    @property
    def blind(self) -> str:
        """The nodes that see nothing of what others have written, for people; empty if there are none."""
        blind = [node for node in sorted(self.hosts) if self.writers - {node}]
        return self.names(node for node in blind if node not in self.sharing)

    def names(self, nodes: Iterable[int]) -> str:
        """``node 1 (host), node 2 (host)``; with many, the first of them."""
        names = [f"node {node} ({self.hosts[node]})" for node in sorted(nodes)]
        return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def look_around(root: Path, world: World, *, is_shared: bool, make_parents: bool = False) -> Sight:
    """Find out which nodes see one folder at ``root``. All ranks call this.

    Where it is said to be shared, rank 0 writes a file, and the others wait until it is seen, as long as a
    network file system may take; on a disk of their own they need not. Where it is not, each node writes
    one, and looks once for others.
    """
    writes = world.is_first if is_shared else world.is_local_first
    mine = _leave_file(root, make_parents) if writes else None
    left = world.all_gather((world.node_rank, mine))
    others = {name for node, name in left if name is not None and node != world.node_rank}
    seen: set[str] = set()
    if world.is_local_first:  # one look per node
        seen = _look(root, others, is_shared)
    reports = world.all_gather((world.node_rank, world.hostname, bool(seen)))
    if mine is not None:
        with suppress(OSError):  # at worst an empty file stays, until a builder tidies up
            (root / mine).unlink()
    return Sight(
        writers=frozenset(node for node, name in left if name is not None),
        sharing=frozenset(node for node, _, sees in reports if sees),
        hosts={node: host for node, host, _ in reports},
    )


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
    sight = look_around(root, world, is_shared=use_shared_fs, make_parents=make_parents)
    if not use_shared_fs:
        if world.is_first and sight.sharing:
            numbers = ", ".join(map(str, sorted(sight.sharing)))
            log.info(
                "%s is one folder for the nodes %s: with use_shared_fs: true its index would be "
                "built once",
                root,
                numbers,
            )
        return
    if sight.blind:
        raise BarrierError(
            f"{root.absolute()}: is not the same folder on all nodes\n"
            f"  found: {sight.blind} cannot see a file that {sight.names(sight.writers)} has written there\n"
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


def _look(root: Path, wanted: set[str], is_shared: bool) -> set[str]:
    """Those of ``wanted`` that appear in ``root`` as soon as they can be expected to."""
    seen = wanted & list_folder(root)  # what is mounted when it is asked for is mounted now
    waits = is_shared and not is_of_one_host(str(root))
    deadline = time.monotonic() + (_PATIENCE if waits else _PERIOD)
    while seen != wanted and time.monotonic() < deadline:
        time.sleep(_PERIOD)
        seen = wanted & list_folder(root)
    return seen
