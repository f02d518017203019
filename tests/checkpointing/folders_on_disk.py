"""Checkpoint folders made by hand: a manifest and small files, without any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron.checkpointing.manifest import MANIFEST_NAME, EngineFacts, Manifest

FILES = {"mp_rank_00_model_states.pt": 7, "configs/a.yml": 3}


def make_manifest(step: int, **more: Any) -> Manifest:
    values: dict[str, Any] = {
        "step": step,
        "state": {"consumed_samples": 8 * step, "loss_sum": 0.1 + 0.2},
        "layout": {"data": 2},
        "engine": EngineFacts(2, 2, 1, 1, "fp32"),
        "config_hash": "abc",
        "versions": {"torch": "2"},
        "has_optimizer": True,
        "node_local": False,
        "disks": [dict(FILES)],
        "created": "2026-01-31T12:00:00Z",
    }
    return Manifest(**(values | more))


def make_checkpoint(root: Path, step: int, *, manifest: bool = True, **more: Any) -> Path:
    folder = root / f"global_step{step}"
    content = make_manifest(step, **more)
    for name, size in content.disks[0].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    if manifest:
        (folder / MANIFEST_NAME).write_bytes(content.to_json())
    return folder
