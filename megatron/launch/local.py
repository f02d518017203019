"""The ranks of one host, through torch's elastic agent (the one behind ``torch.distributed.run``).

What is different from ``torchrun``: SIGTERM and SIGINT are passed on and the ranks get all the time
that they need to save; the first rank to fail is named in one line, without a banner; the ranks meet at
a port that the agent itself holds, so that no other program can take it in between.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from megatron.launch.agents_meeting import AgentsMeeting
from megatron.launch.plan import LaunchPlan
from megatron.runtime.parent import LAUNCHER_PID_VARIABLE
from megatron.runtime.signals import exit_status, handled

# What the ranks of a failed run get before they are killed, in seconds.
SHUTDOWN_TIMEOUT = 20


def run_local(plan: LaunchPlan, node: int = 0) -> int:
    """Start the ranks of one host of the plan, wait for all of them, and return their exit status.

    0 only if every rank ended with 0; else the status of the first rank to fail, 128 + number for one
    that a signal ended. The others are ended within ``SHUTDOWN_TIMEOUT`` seconds then.
    """
    os.environ.update(plan.env)
    os.environ[LAUNCHER_PID_VARIABLE] = str(os.getpid())
    # Otherwise the agent logs each start and each end; what matters is said below.
    quiet = logging.getLogger("torch.distributed.elastic")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    with tempfile.TemporaryDirectory(prefix="deepy_") as folder, _Forwarder() as forwarder:
        agent = _Agent(_worker_spec(plan, node), forwarder, folder)
        result = agent.run()
    return _verdict(result, plan, node, forwarder)


class _Forwarder:
    """Passes signals on to the ranks, each of which leads a session of its own.

    Before there are any, one ends this process. While they are being started it is remembered for them.
    """

    _PASSED_ON: Mapping[signal.Signals, signal.Signals] = {
        signal.SIGTERM: signal.SIGTERM,
        signal.SIGHUP: signal.SIGTERM,  # a closed terminal asks for an orderly end too
        signal.SIGUSR1: signal.SIGUSR1,
        signal.SIGINT: signal.SIGINT,
    }

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._ranks: tuple[int, ...] | None = None
        self._interrupts = 0
        self._handlers = ExitStack()

    def __enter__(self) -> _Forwarder:
        self._handlers.enter_context(handled(self._PASSED_ON, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def hold(self) -> None:
        """Ranks are being started."""
        self._ranks = ()

    def serve(self, ranks: Iterable[int]) -> None:
        """These processes are the ranks; a signal that came before they were there reaches them now."""
        self._ranks = tuple(ranks)
        if self.received is not None:
            self._send(self._PASSED_ON[self.received])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._ranks is None:
            raise SystemExit(exit_status(-number))
        self.received = signal.Signals(number)
        self._interrupts += number == signal.SIGINT
        self._send(
            signal.SIGKILL if self._interrupts > 1 else self._PASSED_ON[signal.Signals(number)]
        )

    def _send(self, number: signal.Signals) -> None:
        for pid in self._ranks or ():
            try:
                if number == signal.SIGKILL:
                    os.killpg(pid, number)  # with everything that the rank has started
                else:
                    os.kill(pid, number)
            except ProcessLookupError:
                pass  # it has ended already


class _Agent(LocalElasticAgent):
    """Torch's agent for one host, which tells the forwarder the ranks' process ids."""

    def __init__(self, spec: WorkerSpec, forwarder: _Forwarder, folder: str) -> None:
        super().__init__(
            spec,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            start_method="spawn",
            shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
        self._forwarder = forwarder

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._forwarder.hold()
        pids: dict[int, int] = super()._start_workers(worker_group)
        self._forwarder.serve(pids.values())
        return pids


def _worker_spec(plan: LaunchPlan, node: int) -> WorkerSpec:
    # The agent would take these signals for itself and kill the ranks after a while. It needs one to
    # handle: an urgent-data signal, which nobody sends.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGURG"
    return WorkerSpec(
        role="rank",
        local_world_size=plan.hosts[node].ranks,
        entrypoint=plan.command[0],
        args=plan.command[1:],
        rdzv_handler=AgentsMeeting(plan, node),
        max_restarts=0,
        monitor_interval=0.1,
        local_addr=plan.address,
    )


def _verdict(result: RunResult, plan: LaunchPlan, node: int, forwarder: _Forwarder) -> int:
    """The status of the run, and the one line that says why it is not 0."""
    if not result.is_failed():
        return 0
    first = min(result.failures.values(), key=lambda failure: failure.timestamp)
    rank = next(rank for rank, failure in result.failures.items() if failure is first)
    code = first.exitcode
    how = f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    others = "; the others were stopped" if plan.hosts[node].ranks > 1 else ""
    asked = f" after {forwarder.received.name}" if forwarder.received else ""
    if code == -signal.SIGBUS:
        others += "; a file that it had mapped was cut or its disk failed, or /dev/shm is full"
    sys.stdout.flush()
    where = f" on {plan.hosts[node].host}" if len(plan.hosts) > 1 else ""
    sys.stderr.write(
        f"deepy.py: rank {rank} of {plan.ranks}{where} ended with {how}{asked}{others}\n"
    )
    return exit_status(code)
