#!/usr/bin/env python
"""Score a checkpoint on held-out text: loss, perplexity, bits per byte."""

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
        from megatron.evaluation.run import add_evaluation_arguments, run_evaluation
        from megatron.runtime.peers import watch_peers
        from megatron.runtime.process import end_process, start_process
        from megatron.runtime.roll_call import problems_are_told

    adopt_rank_variables()
    parser = RankParser(description=__doc__)
    add_config_arguments(parser)
    add_evaluation_arguments(parser)
    with problems_are_told():
        parsed = parser.parse_intermixed_args()
        args = args_from_cli(parsed)
        world = start_process(args.training.distributed_backend, config_hash=args.hash())
    with watch_peers(world):
        text = run_evaluation(args, world, parsed)
        if text:
            print(text, flush=True)
    end_process()


if __name__ == "__main__":
    run_door(main)
