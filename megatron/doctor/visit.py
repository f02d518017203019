"""The steps that all probes go through together. Each gives facts; nobody judges here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from megatron.doctor import (
    data_files,
    folders,
    hosts,
    limits,
    links,
    network,
    reading,
    sharing,
    versions,
)
from megatron.doctor.isolation import failure_of, isolated
from megatron.doctor.meeting import Meeting
from megatron.doctor.torch_process import REDUCE_PATIENCE, TorchProcess
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.memory import available_memory
from megatron.runtime.ports import free_port

_AROUND: Final = 3.0  # seconds that a step may take beside its look
_LOOK: Final = 10.0  # seconds for what takes milliseconds where all is well
_COMPARE: Final = 6.0  # seconds of comparing data
_READ: Final = 1.0  # seconds of reading
_READ_ALONE: Final = 6  # hosts that do so one after another
_STREAM: Final = 0.5  # seconds each way
_REACH: Final = 3.0
_TORCH: Final = 30.0

# By topic, by node: what was found, or {"failed": why}.
Facts = dict[str, dict[int, Any]]


class Visit:
    """One probe's way through all steps.

    Args:
        meeting: with the others.
        args: the configuration as this host reads it; None if it cannot.
        problem: why it cannot.
        torch_process: started already.
    """

    def __init__(
        self,
        meeting: Meeting,
        args: NeoXArgs | None,
        problem: str | None,
        torch_process: TorchProcess,
    ) -> None:
        self._meeting = meeting
        self._args = args
        self._problem = problem
        self._torch = torch_process
        self.facts: Facts = {}

    def all_steps(self) -> Facts:
        """Go through them. All nodes call.

        Raises:
            Gone: node 0 has ended.
        """
        meeting, args = self._meeting, self._args
        self._step("hosts", lambda: hosts.look(meeting.address), _LOOK)
        self.facts["clocks"] = dict(meeting.clocks())
        configuration = args.hash() if args is not None else None
        self._step("versions", lambda: versions.look(configuration, self._problem), _LOOK)
        self._step("limits", limits.look, _LOOK)
        ours = folders.folders_of(args) if args is not None else {}
        self._step("folders", lambda: folders.look(ours), _LOOK)
        if len(self.facts["hosts"]) > 1:
            self._sharing(ours)
        # The devices come late: importing torch has gone on beside the steps before.
        paths = data_files.files_of(args) if args is not None else []
        self._step("devices", self._devices, _TORCH)
        self._read()
        self._step("data", lambda: data_files.look(paths, _COMPARE), _COMPARE + _LOOK)
        if len(self.facts["hosts"]) > 1:
            self._links()
            self._reduce()
        return self.facts

    def _step(self, topic: str, look: Callable[[], Any], patience: float) -> dict[int, Any]:
        found = isolated(look, patience)
        self.facts[topic] = self._meeting.exchange(topic, found, patience + _AROUND)
        return self.facts[topic]

    def _devices(self) -> Any:
        return self._torch.ask(None, _TORCH - 1.0) | {"memory": available_memory()}

    def _sharing(self, ours: dict[str, folders.RunFolder]) -> None:
        """Look for each other's files in the folders of which it matters whether they are one."""
        left = isolated(lambda: sharing.leave(ours), _LOOK)
        left = {} if failure_of(left) is not None else left
        everyones = self._meeting.exchange("left", left, _LOOK + _AROUND)
        self._step(
            "sharing",
            lambda: sharing.look(ours, everyones, self._meeting.node),
            sharing.SEEN_WITHIN * 2 + _LOOK,
        )
        sharing.take_away(ours, left)

    # How fast?

    def _read(self) -> None:
        path = reading.largest_file(self._args) if self._args is not None else None
        nodes = sorted(self.facts["hosts"])
        alone: dict[int, Any] = {}
        for turn in reading.turns(nodes, _READ_ALONE):
            given = self._read_one(path, "read alone", mine=turn == self._meeting.node, seed=turn)
            alone |= {node: found for node, found in given.items() if found is not None}
        self.facts["read alone"] = alone
        if len(nodes) > 1:
            seed = len(nodes) + self._meeting.node
            together = self._read_one(path, "read together", mine=True, seed=seed)
            self.facts["read together"] = together

    # A host without token files has nothing to read: None.
    def _read_one(self, path: str | None, step: str, *, mine: bool, seed: int) -> dict[int, Any]:
        found = None
        if path is not None and mine:
            found = isolated(lambda: reading.look(path, _READ, seed), _LOOK)
        return self._meeting.exchange(step, found, _LOOK + _AROUND)

    def _links(self) -> None:
        meeting = self._meeting
        listener = links.Listener()
        doors = meeting.exchange("doors", [meeting.address, listener.port], _AROUND)
        others = {node: door for node, door in doors.items() if node != meeting.node}

        def reach_all() -> network.PortFacts:
            with ThreadPoolExecutor(32) as pool:
                tries = pool.map(
                    lambda door: links.reach(door[0], door[1], _REACH), others.values()
                )
                closed = {str(n): why for n, why in zip(others, tries, strict=True) if why}
            return {"closed": closed}

        ports = self._step("ports", reach_all, _LOOK)
        self.facts["links"] = {}
        for number, pairs in enumerate(network.rounds(sorted(doors))):
            found: dict[str, Any] = {}
            for one, other in pairs:
                asker, door = (one, other) if _is_open(ports, one, other) else (other, one)
                if asker == meeting.node and _is_open(ports, asker, door):
                    address, port = doors[door]
                    found[str(door)] = isolated(
                        partial(links.measure, address, port, _STREAM), _LOOK
                    )
            self.facts["links"] |= {
                (number * len(doors) + node): {"from": node, "to": value}
                for node, value in meeting.exchange(f"links {number}", found, _LOOK).items()
            }

    def _reduce(self) -> None:
        """One all-reduce, over the library that a run would use on every host."""
        devices = self.facts["devices"]
        backends = {
            "none" if failure_of(found) is not None else found["backend"]
            for found in devices.values()
        }
        backend = backends.pop() if len(backends) == 1 else "gloo"
        place = None
        if self._meeting.node == 0:
            place = [self._meeting.address, free_port()]
        places = self._meeting.exchange("where to reduce", place, _AROUND)
        if not places.get(0):
            return
        address, port = places[0]
        nodes = sorted(places)
        question = {
            "address": address,
            "port": port,
            "rank": nodes.index(self._meeting.node),
            "size": len(nodes),
            "backend": backend,
            "own_address": self._meeting.address,
        }
        patience = REDUCE_PATIENCE + 1.0
        self._step("reduce", lambda: self._torch.ask(question, patience), patience + 1.0)


def _is_open(ports: dict[int, Any], one: int, other: int) -> bool:
    facts = ports.get(one)
    return facts is not None and failure_of(facts) is None and str(other) not in facts["closed"]
