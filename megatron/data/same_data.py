"""Nodes with disks of their own must have the same token files on them: asked before the first step."""

from __future__ import annotations

from megatron.data.split_plan import DataPlan
from megatron.errors import DataError
from megatron.runtime.world import World


def check_same_data(plan: DataPlan, world: World) -> None:
    """Compare the token files that each node's builder has looked at. All ranks call this.

    Compared are the indexes, and of the ``.bin`` files the pieces that
    :meth:`~megatron.data.index_store.IndexStore.content` looks at: all of a small file, a sample of a
    large one. Reading terabytes on every node would take longer than most starts may.

    Raises:
        DataError: on all ranks: a file differs between two nodes.
    """
    if world.num_nodes == 1:
        return
    found = world.all_gather((world.node_rank, world.hostname, _contents(plan)))
    _, first_host, expected = found[0]
    for node_rank, host, contents in found:
        # By place, not by path: a folder may have another name on another node.
        different = [
            path
            for (path, content), (_, other) in zip(expected, contents, strict=True)
            if content != other
        ]
        if different:
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            raise DataError(
                f"{different[0]}.bin{more}: the token files differ between the nodes\n"
                f"  found: other content on node {node_rank} ({host}) than on node 0 ({first_host})\n"
                "  expected: the same files everywhere, because every rank reads its own part of each step\n"
                f"  to do: copy the .bin and .idx files from {first_host} to {host} once more",
                everywhere=True,
            )


def _contents(plan: DataPlan) -> list[tuple[str, str]]:
    """Path, and what tells the file's content, its index and its label file from others."""
    return [
        (source.path, f"{source.recipe.idx_sha256} {source.content}")
        for split in plan.splits.values()
        for source in split.sources
    ]
