#!/usr/bin/env python
"""Generate text with a trained model: unconditionally, from a file of prompts, or interactively."""

from __future__ import annotations

from megatron.errors import run_door
from megatron.neox_arguments.arguments_cli import (
    RankParser,
    add_config_arguments,
    args_from_cli,
)
from megatron.ranks import adopt_rank_variables
from megatron.runtime.before_torch import prepare_for_torch
from megatron.runtime.signals import loading

A_WEEK_S = 7 * 24 * 3600.0


def main() -> None:
    prepare_for_torch()
    with loading():
        from megatron.generation.run import run_generation
        from megatron.runtime.peers import watch_peers
        from megatron.runtime.process import end_process, start_process
        from megatron.runtime.roll_call import problems_are_told
        from megatron.training.loading import load_trained_model
        from megatron.training.setup import build_parts

    adopt_rank_variables()
    parser = RankParser(description=__doc__)
    add_config_arguments(parser)
    with problems_are_told():
        args = args_from_cli(parser.parse_intermixed_args())
        world = start_process(
            args.training.distributed_backend,
            # In a conversation the other ranks wait for what the first one is told.
            collective_timeout_s=A_WEEK_S,
            config_hash=args.hash(),
        )
    with watch_peers(world):
        parts = build_parts(args, world)
        model, _ = load_trained_model(args, parts)
        run_generation(args, model, parts.tokenizer, world)
    end_process()


if __name__ == "__main__":
    run_door(main)
