"""Start and end this process as one rank of a run."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from megatron import logging as neox_logging
from megatron.errors import LaunchError
from megatron.runtime.device import chosen_backend, local_device
from megatron.runtime.parent import end_with_launcher
from megatron.runtime.ports import free_port
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.runtime.world import COLLECTIVE_TIMEOUT_S, World


def start_process(
    backend: str | None = None,
    *,
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S,
    config_hash: str | None = None,
) -> World:
    """Join the run that the launcher's variables describe and return this process's place in it.

    Without such variables this is a run of one process, on a port that is free. Initialises the
    default process group (DeepSpeed needs one even for one process), a gloo group for start-up
    talk, and the logger.

    Args:
        backend: ``nccl`` or ``gloo``; None chooses by device.
        collective_timeout_s: seconds that a rank waits for the others in the collectives of
            :class:`World`, where one may have long work of its own; those of the model never wait
            longer than :data:`COLLECTIVE_TIMEOUT_S` (unless both run over gloo, which is one group).
        config_hash: of the configuration that this process has read; the same on all ranks.

    Raises:
        LaunchError: the variables contradict each other or the devices, the ranks cannot reach each
            other, or have read different configurations.
    """
    end_with_launcher()
    world = World.from_env()
    neox_logging.configure(world.rank)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "MASTER_PORT" not in os.environ:
        if world.size > 1:
            raise LaunchError(
                f"environment: WORLD_SIZE={world.size} but MASTER_PORT is not set: start the ranks "
                "with ./deepy.py, torchrun or deepspeed, or set MASTER_ADDR and MASTER_PORT"
            )
        os.environ["MASTER_PORT"] = str(free_port("127.0.0.1"))
    for name, number in (("RANK", world.rank), ("WORLD_SIZE", world.size)):
        os.environ.setdefault(name, str(number))
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
    local_device(world.local_rank)
    backend = chosen_backend(backend)
    patient = timedelta(seconds=collective_timeout_s)
    usual = patient if backend == "gloo" else timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    try:
        deepspeed.init_distributed(
            dist_backend=backend,
            auto_mpi_discovery=False,
            verbose=False,
            timeout=usual,
        )
    except (dist.DistError, RuntimeError, OSError) as error:
        raise LaunchError(_rendezvous_text(error)) from error
    group = (
        dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=patient)
    )
    world = replace(world, cpu_group=group, collective_timeout_s=usual.total_seconds())
    check_same_configuration(world, config_hash)
    return replace(world, run_id=world.broadcast(uuid.uuid4().hex[:12]))


def end_process() -> None:
    """Leave the process group in order, at the end of a run that went well."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_same_configuration(world: World, config_hash: str | None) -> None:
    """Every host may have files of its own under the names that all are given."""
    found = world.all_gather((config_hash, world.hostname))
    first_hash, first_host = found[0]
    others = [(rank, *each) for rank, each in enumerate(found) if each[0] != first_hash]
    if others:
        rank, its_hash, host = others[0]
        raise LaunchError(
            f"host {host}: rank {rank} has read another configuration than rank 0\n"
            f"  found: hash {its_hash} there, {first_hash} on host {first_host} (rank 0); "
            f"{len(others)} of {world.size} ranks differ\n"
            "  to do: give every host the same files and the same version of this project",
            everywhere=True,
        )


def _rendezvous_text(error: Exception) -> str:
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    advice = (
        "the port is taken by another program: set master_port to a free one, or leave it out"
        if "in use" in str(error) or "EADDRINUSE" in str(error)
        else "check MASTER_ADDR, MASTER_PORT and the firewall between the hosts"
    )
    return f"the ranks could not meet at {address}\n  found: {first_line}\n  to do: {advice}"
