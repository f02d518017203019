"""Who am I among the processes of this run: every rank number, once.

A :class:`World` also carries the few object collectives that start-up code needs. They run over a
group of CPU processes (gloo), so that they work before any accelerator is touched, and they are
no-ops in a run of one process, which needs no process group at all.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch.distributed as dist

from megatron.errors import LaunchError
from megatron.ranks import rank_variables

T = TypeVar("T")

_PLACE_VARIABLES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")

# In a collective nobody is ever this late unless something is wrong: a rank that dies is noticed at
# once, this is for one that hangs.
COLLECTIVE_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class World:
    """The place of this process in the run. Ranks count from 0.

    Attributes:
        rank: global rank.
        size: number of processes of the run.
        local_rank: rank among the processes of this node.
        local_size: number of processes of this node.
        node_rank: number of this node.
        num_nodes: number of nodes.
        hostname: name of this host.
        is_placed: its number within its node is known; else all ranks are taken for one node's.
        run_id: the same short text on all ranks of this run, and another one in any other run.
        cpu_group: gloo group of all ranks; None in a run of one process.
        collective_timeout_s: seconds that a rank waits for the others in the model's collectives.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    hostname: str = field(default_factory=socket.gethostname)
    is_placed: bool = True
    run_id: str = "local"
    cpu_group: dist.ProcessGroup | None = field(default=None, compare=False, repr=False)
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S

    @property
    def is_first(self) -> bool:
        """Global rank 0."""
        return self.rank == 0

    @property
    def is_local_first(self) -> bool:
        """The first process of its node."""
        return self.local_rank == 0

    def broadcast(self, value: T, src: int = 0) -> T:
        """The ``value`` that rank ``src`` passed, on every rank. Values are pickled: small ones only."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=src, group=self.cpu_group)
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """Every rank's ``value``, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        boxes: list[T | None] = [None] * self.size
        dist.all_gather_object(boxes, value, group=self.cpu_group)
        return boxes  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier(group=self.cpu_group)

    @staticmethod
    def from_env(env: Mapping[str, str] | None = None) -> World:
        """The world that the launcher's variables describe, before any process group exists.

        Reads ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` or ``LOCAL_SIZE``, and the
        node's number, as torchrun and DeepSpeed set them, else what Slurm or MPI's launchers say
        (:mod:`megatron.ranks`); without all of them this is a run of one process.

        Raises:
            LaunchError: a variable is no number, or the numbers contradict each other.
        """
        env = os.environ if env is None else env
        env = {**env, **rank_variables(env)}

        def number(name: str, default: int) -> int:
            text = env.get(name, "")
            if not text:
                return default
            if not text.isdigit():
                raise LaunchError(f"environment: {name}={text!r} is not a whole number from 0 on")
            return int(text)

        size = number("WORLD_SIZE", 1)
        rank = number("RANK", 0)
        if size > 1 and "RANK" not in env:
            raise LaunchError(
                f"environment: WORLD_SIZE={size} but RANK is not set: each process needs its own RANK"
            )
        local_rank = number("LOCAL_RANK", rank if "LOCAL_WORLD_SIZE" not in env else 0)
        local_size = number("LOCAL_WORLD_SIZE", number("LOCAL_SIZE", size))
        if rank >= size or local_rank >= local_size or local_size > size:
            raise LaunchError(
                f"environment: RANK={rank} of WORLD_SIZE={size}, LOCAL_RANK={local_rank} of "
                f"LOCAL_WORLD_SIZE={local_size}: a rank must be below its size, and the local size "
                "at most the world's"
            )
        # torchrun's name, DeepSpeed's, and that of scripts; the guess holds for equal nodes only.
        guess = number("NODE_RANK", rank // local_size)
        node_rank = number("GROUP_RANK", number("CROSS_RANK", guess))
        return World(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            node_rank=node_rank,
            num_nodes=-(-size // local_size),
            is_placed=size == 1 or any(map(env.get, _PLACE_VARIABLES)),
        )
