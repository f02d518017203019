"""Find the checkpoint that a run shall start from: the same one on all nodes.

*Nothing there yet* (no folder, or one without checkpoints) is None: a fresh start. *Something
there, but not whole* is an error: a run that silently began anew would throw the work away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron.checkpointing import folders
from megatron.checkpointing.looking import (
    CheckpointInfo,
    any_folder,
    is_neox_folder,
    look_at,
    no_folder,
    steps_with_manifest,
)
from megatron.checkpointing.parts import Reader
from megatron.checkpointing.together import together
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.runtime.world import World

log = get_logger(__name__)


def find_checkpoint(
    load_dir: str | Path,
    iteration: int | None = None,
    *,
    world: World | None = None,
    foreign: bool = False,
    neox: bool = False,
    continues: bool = False,
    node_local: bool = False,
) -> CheckpointInfo | None:
    """The checkpoint that ``<load_dir>/latest`` names, or that of step ``iteration``.

    With a ``world``, all ranks call this; the first process of each node looks, and all must see
    the same. What is worth knowing about the choice is logged.

    Args:
        load_dir: the root of a run's checkpoints.
        iteration: a step to take instead of the latest.
        world: this process's place; None looks alone.
        foreign: accept any folder without manifest for its weights.
        neox: accept one that GPT-NeoX wrote, but not one of ours that has lost its manifest.
        continues: the run goes on from it, and needs the files of all ranks; else weights will do.
        node_local: each node has its own part of it on its own disk.

    Returns:
        The checkpoint, checked against its manifest; None when nothing is there yet.

    Raises:
        CheckpointError: something is there, but it is not whole, or not the same on all nodes.
    """
    world = world or World()
    root = Path(load_dir).absolute()
    reader = Reader(world.node_rank, world.num_nodes, node_local, continues)
    accepts = any_folder if foreign else is_neox_folder if neox else no_folder
    name = f"node {world.node_rank}, {world.hostname}"

    def look(step: int | None) -> list[_Seen]:
        def see() -> _Seen:
            return _Seen(name, look_at(root, step, reader, accepts), steps_with_manifest(root))

        found = together(world, see if world.is_local_first else None)
        return [seen for seen in found if seen is not None]

    seen = look(iteration)
    behind = _step_behind(seen) if node_local else None
    if behind is not None:
        if world.is_first:
            log.warning("%s", _killed_in_publishing(root, seen, behind))
        seen = look(behind)
    if len({each.step for each in seen}) > 1:
        raise CheckpointError(_not_alike(root, seen, node_local=node_local), everywhere=True)
    info = seen[0].info
    if info is None:
        return None
    if world.is_first:
        for note in info.notes:
            log.warning("%s", note)
    return replace(info, path=root / info.path.name)  # each node's own disk may be elsewhere


@dataclass(frozen=True)
class _Seen:
    """What one node sees: the checkpoint to use, and the ``steps`` of all that could be one."""

    node: str
    info: CheckpointInfo | None
    steps: tuple[int, ...]

    @property
    def step(self) -> int | None:
        return self.info.step if self.info else None


def _step_behind(seen: Sequence[_Seen]) -> int | None:
    """The step to use where some nodes' disks are one save ahead of the others'; None in all other cases.

    Each disk gets its part under its name in its own moment: a kill between the first and the last of these
    leaves it on some only, and the one before it on all.
    """
    steps = [each.step for each in seen if each.step is not None]
    if len(steps) < len(seen) or min(steps) == max(steps):
        return None
    before = {max((s for s in each.steps if s < max(steps)), default=None) for each in seen}
    return min(steps) if before == {min(steps)} else None


def _killed_in_publishing(root: Path, seen: Sequence[_Seen], behind: int) -> str:
    without = [each.node for each in seen if each.step == behind]
    ahead = next(each.step for each in seen if each.step != behind)
    assert ahead is not None
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    return (
        f"{root}: {folders.step_name(ahead)} is missing on {without[0]}{more}: its save was killed just "
        f"before; using {folders.step_name(behind)}, which all nodes have"
    )


def _not_alike(root: Path, seen: Sequence[_Seen], *, node_local: bool) -> str:
    listing = "\n".join(
        f"    {each.node}: {'nothing' if each.step is None else folders.step_name(each.step)}"
        for each in seen[:4]
    )
    shared = set.intersection(*(set(each.steps) for each in seen))
    if not node_local:
        advice = (
            "put `load` on a file system that all nodes share; for a disk in each node, set "
            "use_node_local_storage: true and start the nodes that saved"
        )
    elif shared:
        advice = f"choose the newest that all nodes have: --iteration {max(shared)}"
    else:
        advice = (
            "start the nodes that saved, or bring back what is missing; for a fresh start give each node "
            "an empty folder"
        )
    return f"load: {root} is not the same on all nodes\n  found:\n{listing}\n  to do: {advice}"
