"""Build the index maps of a configuration ahead of the job, so that it starts warm.

On a cluster this can be done on a login node, without GPUs: the job's first start then finds
everything in place, under the same key, and builds nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from megatron import logging as neox_logging
from megatron.data.datasets import DataRequest, DataSplits, build_datasets
from megatron.data.run_length import run_length
from megatron.data.sources import all_paths, store_of
from megatron.data.splits import samples_wanted
from megatron.data.stored_arrays import StoredArrays
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.arguments_cli import add_config_arguments, args_from_cli
from megatron.runtime.world import World

_SHOWN: Final = 10  # folders of a split that are listed


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of ``tools/datasets/build_index.py``."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_config_arguments(parser)
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="ranks of the job, which its batch size depends on where train_batch_size is not given; "
        "default: num_gpus x num_nodes of the configuration, else 1",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the index maps and compare them with their checksums",
    )
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
    args = args_from_cli(parsed)
    ranks = parsed.world_size or (args.launch.num_gpus or 1) * max(1, args.launch.num_nodes)
    sys.stdout.write(build_index(args, ranks, verify=parsed.verify) + "\n")


def build_index(args: NeoXArgs, world_size: int, *, verify: bool = False) -> str:
    """Build what is missing for a run of ``world_size`` ranks; returns what there is, for people.

    Raises:
        NeoXError: the configuration, the data or the index maps are not as they should be.
    """
    args.require(
        "data_path|train_data_paths", "train_iters|train_epochs", purpose="building the index"
    )
    batch = args.batch_sizes(world_size)
    steps, length = args.training.train_iters, ""
    if args.training.train_epochs is not None:
        found = run_length(
            args.data,
            epochs=args.training.train_epochs,
            seq_length=args.model.seq_length,
            seed=args.training.seed,
            global_batch_size=batch.global_batch_size,
            world=World(),
        )
        steps, length = found.steps, found.explain()
    assert steps is not None
    store = store_of(args.data)
    before = {path.parent.name for path in store.root.glob("*/manifest.json")}
    data = build_datasets(
        DataRequest(
            replace(args.data, mmap_warmup=False, data_local_cache_dir=None),
            seq_length=args.model.seq_length,
            seed=args.training.seed,
            wanted=samples_wanted(
                steps,
                args.training.eval_interval,
                args.training.eval_iters,
                batch.global_batch_size,
            ),
            data_parallel_size=batch.data_parallel_size,
            train_epochs=args.training.train_epochs,
        ),
        World(),
    )
    paths = all_paths(args.data)
    what = paths[0] if len(paths) == 1 else f"{len(paths)} datasets"
    return "\n".join(
        [
            f"{what}: {data.facts.documents:,} documents, {data.facts.tokens:,} tokens",
            f"batch: {batch.explain()}",
            *([length] if length else []),
            *_lines(data, before, verify),
        ]
    )


def _lines(data: DataSplits, before: set[str], verify: bool) -> list[str]:
    lines = []
    for split in (data.train, data.valid, data.test):
        if split is None:
            continue
        facts = data.facts.splits[split.name]
        state = [f"  {_state(stored, before, verify)}" for stored in split.stored[:_SHOWN]]
        for stored in split.stored[_SHOWN:]:
            _state(stored, before, verify)
        if split.stored[_SHOWN:]:
            state.append(f"  … {len(split.stored) - _SHOWN:,} more")
        lines.append(
            f"{split.name}: {facts.documents:,} documents, {facts.tokens:,} tokens, "
            f"{facts.samples_per_epoch:,} samples an epoch; {facts.wanted:,} samples wanted, epochs: "
            f"{facts.epochs:,}"
        )
        lines += state
    return lines


def _state(stored: StoredArrays, before: set[str], verify: bool) -> str:
    state = "was there already" if stored.folder.name in before else "built"
    if verify:
        stored.verify()
        state += ", verified"
    return f"{stored.folder}: {state}"
