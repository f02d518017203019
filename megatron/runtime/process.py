"""Start and end this process as one rank of a run."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]

from megatron import logging as neox_logging
from megatron.errors import LaunchError, first_line
from megatron.ranks import adopt_rank_variables
from megatron.runtime.device import chosen_backend, local_device
from megatron.runtime.interface import choose_interface
from megatron.runtime.meeting_store import open_store
from megatron.runtime.parent import end_with_launcher
from megatron.runtime.peer_link import is_loopback
from megatron.runtime.roll_call import call_roll, placed_by_host
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.runtime.world import COLLECTIVE_TIMEOUT_S, World

# Seconds that a rank waits at the start for those that have not come yet.
MEETING_PATIENCE_S = 300.0


def start_process(
    backend: str | None = None,
    *,
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S,
    config_hash: str | None = None,
) -> World:
    """Join the run that the launcher's variables describe and return this process's place in it.

    Without such variables this is a run of one process, which opens no port. Waits until all ranks have
    come, initialises the default process group (DeepSpeed needs one even for one process), a gloo
    group for start-up talk, and the logger.

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
    adopt_rank_variables()
    world = World.from_env()
    neox_logging.configure(world.rank)
    if world.is_placed:  # a mistake shows before others wait for this rank
        local_device(world.local_rank)
    backend = chosen_backend(backend)
    world, store = _meet(world)
    device = local_device(world.local_rank)
    place = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": world.local_rank}
    os.environ.update({name: str(number) for name, number in place.items()})
    usual_s = collective_timeout_s if backend == "gloo" else COLLECTIVE_TIMEOUT_S
    try:
        group = _make_groups(world, store, backend, device, usual_s, collective_timeout_s)
    except (dist.DistError, RuntimeError, OSError) as error:
        raise LaunchError(_connection_text(world, error)) from error
    # It finds the process group, and makes its own objects around it.
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    world = replace(world, cpu_group=group, collective_timeout_s=usual_s)
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


def _meet(world: World) -> tuple[World, Store]:
    """Wait until all ranks are there; this process's place, and the store through which they connect."""
    if world.size == 1:
        return world, HashStore()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    found = os.environ.get("MASTER_PORT")
    if found is None or not (found.isdigit() and 0 < int(found) < 2**16):
        raise LaunchError(
            f"environment: WORLD_SIZE={world.size} but MASTER_PORT is "
            f"{'not set' if found is None else repr(found)}: start the ranks with ./deepy.py, torchrun or "
            "deepspeed, or set MASTER_ADDR and MASTER_PORT"
        )
    meeting = open_store(world, MEETING_PATIENCE_S)
    attendance = call_roll(world, meeting, MEETING_PATIENCE_S)
    if world.is_placed:
        world = replace(world, num_nodes=attendance.num_nodes)
    else:
        world = placed_by_host(world, meeting.store)
    if world.num_nodes > 1:
        own = meeting.own_address
        stays = own is None or is_loopback(own)  # on the host that has the store
        choose_interface(attendance.first_address if stays else own)
    return world, meeting.store


def _make_groups(
    world: World, store: Store, backend: str, device: torch.device, usual_s: float, patient_s: float
) -> dist.ProcessGroup:
    """Make the default group, whose collectives wait ``usual_s`` seconds, and return gloo's."""
    trial = _try_ways(world, store)  # open until all have connected anew
    store.set_timeout(timedelta(seconds=usual_s))
    dist.init_process_group(
        backend,
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=usual_s),
        # As DeepSpeed has it: NCCL then connects at once, and knows its device.
        device_id=device if backend == "nccl" and world.size > 1 else None,
    )
    group = dist.group.WORLD
    if backend != "gloo":
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patient_s))
    assert group is not None
    del trial
    return group


def _try_ways(world: World, store: Store) -> object:
    """Connect one rank of each node with each other, as gloo does, for a trial.

    A group has as long to connect as its collectives may take: a closed port would show after half an
    hour.
    """
    if world.num_nodes == 1 or not world.is_local_first:
        return None
    number = store.add("trial/nodes", 1) - 1
    patience = timedelta(seconds=MEETING_PATIENCE_S)
    return dist.ProcessGroupGloo(PrefixStore("trial", store), number, world.num_nodes, patience)


def _connection_text(world: World, error: Exception) -> str:
    return (
        f"rank {world.rank} on {world.hostname}: all ranks have come, but cannot connect with each other\n"
        f"  found: {first_line(error) or repr(error)}\n"
        "  to do: open the ports that systems choose (32768 and above) between the hosts, or set "
        "GLOO_SOCKET_IFNAME to the interface that leads to them; ./deepy.py doctor tries the ways"
    )
