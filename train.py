#!/usr/bin/env python
"""Train a model: one rank of a run, started by ./deepy.py, torchrun, deepspeed, or alone."""

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


def main() -> None:
    prepare_for_torch()
    with loading():
        from megatron.runtime.peers import watch_peers
        from megatron.runtime.process import end_process, start_process
        from megatron.runtime.roll_call import problems_are_told
        from megatron.runtime.world import COLLECTIVE_TIMEOUT_S, World
        from megatron.training.run import run_training

    adopt_rank_variables()
    parser = RankParser(description=__doc__)
    add_config_arguments(parser)
    with problems_are_told():
        args = args_from_cli(parser.parse_intermixed_args(), world_size=World.from_env().size)
        world = start_process(
            args.training.distributed_backend,
            # Nodes with an index each meet when the slowest has built its own.
            collective_timeout_s=COLLECTIVE_TIMEOUT_S + args.data.index_build_timeout_s,
            config_hash=args.hash(),
        )
    with watch_peers(world):
        run_training(args, world)
    end_process()


if __name__ == "__main__":
    run_door(main)
