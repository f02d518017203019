"""``manifest.json``: what a checkpoint folder must hold to be one, and what a resume needs to know.

The manifest is written last. A folder without it is not a checkpoint, whatever else lies in it; one
whose files differ from it in name or size is a broken checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from megatron.checkpointing.universal import WholeModel
from megatron.errors import CheckpointError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class EngineFacts:
    """What DeepSpeed's files depend on: they can be loaded whole only by an engine with equal facts.

    Attributes:
        world_size: processes of the run.
        data_parallel_size: ranks among which ZeRO split the optimizer's state: data × context.
        model_parallel_size: ranks among which each weight is split.
        pipe_parallel_size: stages among which layers are dealt out; 0 without a pipeline engine.
        zero_stage: 0 to 3.
        precision: ``fp32``, ``bfloat16`` or ``fp16``.
    """

    world_size: int
    data_parallel_size: int
    model_parallel_size: int
    zero_stage: int
    precision: str
    pipe_parallel_size: int = 0


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        step: optimizer steps done.
        state: the run's state: consumed samples, index keys and whatever else the training loop
            needs to go on. JSON values only; floats survive to the last bit.
        layout: how the run was spread over ranks, for people and for later tools.
        engine: what the files of DeepSpeed depend on.
        config_hash: hash of the configuration of the run that wrote this.
        versions: releases of what wrote the files.
        has_optimizer: whether the optimizer's state was saved.
        node_local: whether each node holds its own part on its own disk.
        disks: for each disk (one, or one per node in node order), its files: path inside the
            folder → size in bytes.
        created: UTC time of writing, ISO 8601.
        whole: what the tensors of a layout-free checkpoint are; None for one that ranks wrote. Of such a
            one ``layout`` and ``engine`` tell where it comes from.
    """

    step: int
    state: dict[str, Any]
    layout: dict[str, Any]
    engine: EngineFacts
    config_hash: str
    versions: dict[str, str]
    has_optimizer: bool
    node_local: bool
    disks: list[dict[str, int]]
    created: str
    whole: WholeModel | None = None

    def to_json(self) -> bytes:
        """The file's content. Raises ValueError for a value that JSON does not have, such as NaN."""
        document = {"format_version": FORMAT_VERSION, **asdict(self)}
        if self.whole is None:
            del document["whole"]
        return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()

    def files_of(self, node_rank: int) -> dict[str, int]:
        """The files that the disk of node ``node_rank`` must hold: path → bytes.

        A node that the run did not have (an evaluation on another machine, say) is held to the
        first node's files.
        """
        on_own_disk = self.node_local and node_rank < len(self.disks)
        return self.disks[node_rank if on_own_disk else 0]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of ``folder``; None when there is none.

    Raises:
        CheckpointError: there is one, but it cannot be read or is not of this format.
    """
    path = folder / MANIFEST_NAME
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read\n  found: {error}\n"
            "  to do: use another checkpoint (--iteration N), or restore this folder"
        ) from error
    return _from_document(path, document)


def _from_document(path: Path, document: Any) -> Manifest:
    version = document.get("format_version") if isinstance(document, Mapping) else None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}\n  found: format_version {version!r}\n  expected: {FORMAT_VERSION}\n"
            "  to do: read it with the release that wrote it"
        )
    try:
        values = {
            item.name: document[item.name] for item in fields(Manifest) if item.name != "whole"
        }
        values["engine"] = EngineFacts(**values["engine"])
        if "whole" in document:
            values["whole"] = WholeModel.from_dict(document["whole"])
        manifest = Manifest(**values)
        well_formed = bool(manifest.disks) and all(
            isinstance(size, int) for disk in manifest.disks for size in disk.values()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in a field it must have") from error
    if not well_formed:
        raise CheckpointError(f"{path} is damaged: it lists no files, or sizes that are no numbers")
    return manifest


def differences(folder: Path, files: Mapping[str, int]) -> list[str]:
    """How ``folder`` differs from ``files`` (path → bytes), a line for each; empty when it is whole."""
    found = []
    for name, size in files.items():
        try:
            actual = (folder / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            found.append(f"{name} is missing, the manifest says {size:,} bytes")
            continue
        if actual != size:
            found.append(f"{name} has {actual:,} bytes, the manifest says {size:,}")
    return found
