"""What a run of a configuration needs of the hosts, in numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from megatron.data.indexed_dataset import data_file_path
from megatron.data.sources import all_paths
from megatron.launch.facts import vocabulary_of
from megatron.monitor.from_arguments import flops_a_token
from megatron.monitor.pipeline_facts import memory_of_largest_stage
from megatron.neox_arguments import NeoXArgs

_PREFETCHED: Final = 2  # batches that a worker is ahead, by the loader's default
_BATCH_ARRAYS: Final = 4  # tokens, labels, mask and positions, of eight bytes
# Of a process with torch and numpy loaded, beside what it shares.
_WORKER_BYTES: Final = 400 * 2**20
# Likewise of a rank, with DeepSpeed and libraries of the device.
_RANK_BYTES: Final = 1500 * 2**20


@dataclass(frozen=True)
class Needs:
    """Of a run on ``hosts × ranks_per_host`` ranks. Bytes, floating-point operations, seconds.

    Attributes:
        ranks_per_host: processes on each host.
        num_workers: data workers of each rank.
        device_bytes: estimate for a rank's device (the host's memory where there is no other); None
            without a batch or a model.
        host_bytes: of a host's memory: processes, offloaded states, tokens in memory.
        held_tokens_bytes: the part of ``host_bytes`` that ``data_impl: cached`` holds.
        shm_bytes: of /dev/shm on a host.
        gradient_bytes: that a rank reduces with the others in a step; None without a model.
        step_flops: of a step, over all ranks; None without a batch or a model.
        checkpoint_bytes: of one checkpoint, over all hosts; None without a model.
    """

    ranks_per_host: int
    num_workers: int
    device_bytes: int | None
    host_bytes: int
    held_tokens_bytes: int
    shm_bytes: int
    gradient_bytes: int | None
    step_flops: float | None
    checkpoint_bytes: int | None


def needs_of(args: NeoXArgs, *, hosts: int, ranks_per_host: int, has_devices: bool) -> Needs:
    """What ``args`` need.

    Raises:
        ConfigError: layout or batch do not fit that many ranks.
    """
    workers = args.data.num_workers
    held = _held_tokens(args) if args.data.data_impl == "cached" else 0
    host = ranks_per_host * (_RANK_BYTES + workers * _WORKER_BYTES) + held
    device = gradients = checkpoint = flops = None
    micro_batch = 1
    if args.model.is_given:
        _, rows, _ = vocabulary_of(args)
        parameters = args.model.parameter_count(rows)
        of_rank = parameters // (
            args.parallelism.model_parallel_size * max(1, args.parallelism.pipe_parallel_size)
        )
        gradients = of_rank * (4 if args.model.precision == "fp32" else 2)
        checkpoint = _checkpoint_bytes(args, parameters)
        keys = args.batch
        if keys.train_batch_size is not None or keys.train_micro_batch_size_per_gpu is not None:
            batch = args.batch_sizes(hosts * ranks_per_host)
            micro_batch = batch.micro_batch_size
            estimate = memory_of_largest_stage(args, batch, rows)
            device = estimate.total
            host += ranks_per_host * (estimate.host + (0 if has_devices else estimate.total))
            flops = _step_flops(args, parameters, rows, batch.global_batch_size)
    batch_bytes = micro_batch * (args.model.seq_length + 1) * 8 * _BATCH_ARRAYS
    return Needs(
        ranks_per_host=ranks_per_host,
        num_workers=workers,
        device_bytes=device,
        host_bytes=host,
        held_tokens_bytes=held,
        shm_bytes=ranks_per_host * workers * _PREFETCHED * batch_bytes,
        gradient_bytes=gradients,
        step_flops=flops,
        checkpoint_bytes=checkpoint,
    )


def _step_flops(args: NeoXArgs, parameters: int, rows: int, global_batch_size: int) -> float:
    a_token = flops_a_token(
        args.model,
        parameters=parameters,
        embedding_parameters=args.model.embedding_parameter_count(rows),
    )
    return a_token * global_batch_size * args.model.seq_length


def _checkpoint_bytes(args: NeoXArgs, parameters: int) -> int:
    """Weights, and with the optimizer an fp32 copy and Adam's two numbers for each."""
    weights = parameters * (4 if args.model.precision == "fp32" else 2)
    return weights if args.checkpointing.no_save_optim else weights + 12 * parameters


def _held_tokens(args: NeoXArgs) -> int:
    """Bytes of all token files that are here."""
    found = 0
    for prefix in all_paths(args.data):
        try:
            found += os.stat(data_file_path(prefix)).st_size
        except OSError:
            continue  # said where the files are compared
    return found
