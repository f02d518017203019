"""Which files of a checkpoint one node must find, where each node may have only its part of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from megatron.checkpointing.folders import LATEST_NAME
from megatron.checkpointing.manifest import Manifest, differences


@dataclass(frozen=True)
class Reader:
    """The node that looks for a checkpoint, and what for.

    Attributes:
        node_rank, num_nodes: its place in the run.
        node_local: ``use_node_local_storage``: each node is to find its own part only.
        continues: the run is to go on from it. For its weights alone, which are whole on each disk, a node
            needs no more than one part, whatever the run was like.
    """

    node_rank: int = 0
    num_nodes: int = 1
    node_local: bool = False
    continues: bool = False

    def needs(self, manifest: Manifest) -> dict[str, int]:
        """The files that must be here: path → bytes."""
        if not self.continues or self._takes_its_part(manifest):
            return manifest.files_of(self.node_rank)
        # What two disks hold under one name is the same.
        return {name: size for files in manifest.disks for name, size in files.items()}

    def remedy(self, folder: Path, manifest: Manifest) -> str | None:
        """What to do where ``folder`` lacks what :meth:`needs` says; None if it is not about parts."""
        if not manifest.node_local:
            return None
        number = len(manifest.disks)
        here = [node for node, files in enumerate(manifest.disks) if not differences(folder, files)]
        if not here:
            missing = (
                f"this node's own part, that of node {self.node_rank}"
                if self._takes_its_part(manifest)
                else f"the missing files, from the disks of the {number} nodes that saved it"
            )
            return f"bring back {missing}, or choose an earlier step with --iteration N"
        held = f"this is the part of node {', '.join(map(str, here))} of {number}: "
        gather = gathering(folder, number)
        if self.num_nodes != number:
            return f"{held}start the {number} nodes that saved it, in their order; or {gather}"
        if self.node_rank not in here:
            return f"{held}start the nodes in the order of the save"
        return (
            f"{held}set checkpoint: {{use_node_local_storage: true}}, as it was saved; or {gather}"
        )

    def _takes_its_part(self, manifest: Manifest) -> bool:
        return self.node_local and self.num_nodes == len(manifest.disks)


def gathering(folder: Path, number: int) -> str:
    """How the parts in ``folder`` on the disks of ``number`` nodes become one checkpoint for all."""
    sources = shlex.join([str(folder), str(folder.parent / LATEST_NAME)])
    return (
        f"copy the parts of all {number} into one folder that all nodes see (on each: rsync -a {sources} "
        "SHARED/), and set load: SHARED and use_node_local_storage: false"
    )
