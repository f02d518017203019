"""Do the nodes save into one folder, or each into its own? Asked before anything slow is done."""

from __future__ import annotations

from pathlib import Path

from megatron.errors import CheckpointError
from megatron.runtime.fs_probe import look_around
from megatron.runtime.world import World


def check_sharing(root: Path, world: World, *, node_local: bool) -> None:
    """Compare what the nodes see under ``root`` with what the configuration says. All ranks call this.

    With one node, or where nobody can write, nothing is asked.

    Args:
        root: where checkpoints go; made when missing.
        world: all ranks.
        node_local: ``use_node_local_storage``, each node is to have its own.

    Raises:
        CheckpointError: on every rank: it is the other way round.
    """
    if world.num_nodes == 1:
        return
    sight = look_around(root, world, is_shared=not node_local, make_parents=True)
    if not node_local and sight.blind:
        raise CheckpointError(
            f"save: {root} is not the same folder on all nodes\n"
            f"  found: {sight.blind} cannot see a file that node 0 ({sight.hosts[0]}) has written there\n"
            "  expected: one shared file system, because use_node_local_storage is false\n"
            "  to do: set checkpoint: {use_node_local_storage: true} to save each node's part on its own "
            "disk; else choose a `save` that all nodes see",
            everywhere=True,
        )
    if node_local and sight.sharing:
        raise CheckpointError(
            f"save: {root} is one folder for several nodes\n"
            f"  found: {sight.names(sight.sharing)} see what other nodes have written there\n"
            "  expected: a disk of each node's own, because use_node_local_storage is true\n"
            "  to do: set use_node_local_storage: false, or choose a `save` on the nodes' own disks",
            everywhere=True,
        )
