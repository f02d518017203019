"""Whole training runs, one after another in the same world of processes."""

from __future__ import annotations

from typing import Any

from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.run import run_training


def train_all(world: World, configs: list[dict[str, Any]]) -> list[int]:
    """Do the runs, and return the step at which each ends."""
    return [
        run_training(NeoXArgs.from_dict(config, world_size=world.size), world).step
        for config in configs
    ]
