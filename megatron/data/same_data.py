"""Nodes with disks of their own must have the same token files on them: asked before the first step."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from megatron.data.recipes import hash_of
from megatron.data.split_plan import DataPlan
from megatron.errors import DataError
from megatron.runtime.world import World

# Nodes of one kind that a message names.
_NAMED: Final = 3


def check_same_data(plan: DataPlan, world: World) -> None:
    """Compare the token files that each node's builder has looked at. All ranks call this.

    Compared are the indexes, and of the ``.bin`` files the pieces that
    :meth:`~megatron.data.index_store.IndexStore.content` looks at: all of a small file, a sample of a
    large one. Reading terabytes on every node would take longer than most starts may; the doctor reads
    more.

    Raises:
        DataError: on all ranks: a file differs between two nodes.
    """
    if world.num_nodes == 1:
        return
    contents = _contents(plan)
    # A short word of each rank: thousands of ranks may have a thousand files.
    words = hash_of([[*place, content] for place, (_, content) in contents.items()])
    if len(set(world.all_gather(words))) == 1:
        return
    expected = world.broadcast(contents)
    found = world.all_gather(
        (world.node_rank, world.hostname, words, _different(expected, contents))
    )
    hosts: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for node_rank, host, its_words, _ in found:
        hosts[its_words][node_rank] = host
    different = next(paths for _, _, _, paths in found if paths)
    more = f" and {len(different) - 1} more" if len(different) > 1 else ""
    raise DataError(
        f"{different[0]}.bin{more}: the token files differ between the nodes\n"
        f"  found: one content {', another '.join(_named(nodes) for nodes in hosts.values())}\n"
        "  expected: the same .bin and .idx files everywhere, because every rank reads its own part of "
        "each step\n"
        "  to do: find out which are right, and copy them once more to the other nodes (rsync with "
        "--checksum: size and time may be the same)",
        everywhere=True,
    )


def _contents(plan: DataPlan) -> dict[tuple[str, int], tuple[str, str]]:
    """By split and place: the path, and what tells the files, their index and their labels from others."""
    return {
        (name, number): (source.path, source.key)
        for name, split in plan.splits.items()
        for number, source in enumerate(split.sources)
    }


def _different(
    expected: dict[tuple[str, int], tuple[str, str]], found: dict[tuple[str, int], tuple[str, str]]
) -> list[str]:
    """The paths whose files differ. Compared by place: a folder may have another name on another node.

    A split may be missing on one of them, where its file has no documents for it.
    """
    nothing = ("", "")
    paths = [
        path
        for place, (path, content) in found.items()
        if expected.get(place, nothing)[1] != content
    ] or [path for place, (path, _) in expected.items() if place not in found]
    return list(dict.fromkeys(paths))


def _named(nodes: dict[int, str]) -> str:
    """``on nodes 0 (a), 1 (b), 2 (c) and 5 more``."""
    names = [f"{node} ({host})" for node, host in nodes.items()]
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"on node{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"
