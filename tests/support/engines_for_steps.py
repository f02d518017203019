"""An engine as a run has it, for tests that do single steps."""

from __future__ import annotations

from typing import Any

from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.setup import build_engine, build_model, build_parts
from megatron.training.step import StepSettings


def build(world: World, config: dict[str, Any]) -> tuple[Any, StepSettings]:
    """The engine of the run that ``config`` describes, and the settings of a step without dropout."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    engine = build_engine(args, parts, build_model(args, parts))
    settings = StepSettings(
        parts.device, parts.groups, seed=1, has_dropout=False, zero_stage=args.optim.zero_stage
    )
    return engine, settings
