"""A start through another program (pdsh, mpirun, srun): wait for it, pass on signals, stop what is left."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any, Final, NoReturn

from megatron.errors import EXIT_USER_ERROR
from megatron.launch.commands import check_launcher, environment_of_launcher, launcher_command
from megatron.launch.job import NOTHING_STARTED
from megatron.launch.pdsh import (
    clean_up,
    pdsh_command,
    pdsh_environment,
    prepare_hosts,
    signal_hosts,
)
from megatron.launch.plan import LaunchPlan
from megatron.runtime.parent import end_with_parent
from megatron.runtime.signals import exit_status, handled
from megatron.runtime.silence import say_no_more

# Seconds that the other hosts get to end by themselves after one has failed; then they are stopped.
_GRACE: Final = 25.0
# Seconds between the polite stop of what is left and its end by force.
_FORCE: Final = 20.0
# Seconds that an MPI launcher or srun gets to end all by itself at the second Ctrl-C.
_TERM: Final = 8.0
_LOOK: Final = 0.2
_ENDED = re.compile(r"pdsh@\S+: (\S+): ssh exited with exit code (\d+)")


def run_remote(plan: LaunchPlan) -> int:
    """Start the ranks on their hosts, wait for all, and return the exit status of the whole.

    Raises:
        LaunchError: the launcher is missing, or hosts cannot take part; nothing was started.
    """
    check_launcher(plan.launcher)
    return _run_pdsh(plan) if plan.launcher == "pdsh" else _run_launcher(plan)


def _run_launcher(plan: LaunchPlan) -> int:
    """Open MPI, MPICH and Slurm pass signals on and end all ranks when one fails, by themselves."""
    process = subprocess.Popen(
        launcher_command(plan),
        env=environment_of_launcher(plan, os.environ),
        start_new_session=True,
        preexec_fn=partial(end_with_parent, signal.SIGUSR1),
    )

    force = threading.Timer(_TERM, process.kill)
    force.daemon = True

    def stop(number: signal.Signals, times: int) -> None:
        # The launchers pass SIGUSR1 on to all ranks, which save and stop; SIGTERM they would turn into
        # the end of the job.
        process.send_signal(signal.SIGUSR1 if times == 1 else signal.SIGTERM)
        if times == 2:
            # MPICH's only passes that on. Its helpers on the hosts end the ranks when it is gone.
            force.start()

    with _stops_passed_on(stop):
        status = _wait(process)
    force.cancel()
    if status not in (0, plan.told_status):
        sys.stdout.flush()
        sys.stderr.write(f"deepy.py: {plan.launcher} ended with status {status}\n")
    return status


def _run_pdsh(plan: LaunchPlan) -> int:
    env = dict(os.environ)
    with handled((signal.SIGTERM, signal.SIGHUP), _end_now):
        plan = replace(plan, port=prepare_hosts(plan, env))
    process = subprocess.Popen(
        pdsh_command(plan),
        env=pdsh_environment(plan, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        # The agents see that it has gone, and stop their ranks.
        preexec_fn=partial(end_with_parent, signal.SIGKILL),
    )
    failures = _Failures(plan)
    assert process.stdout is not None
    assert process.stderr is not None
    relays = [
        threading.Thread(target=_relay, args=(process.stdout, sys.stdout, plan, failures)),
        threading.Thread(target=_relay, args=(process.stderr, sys.stderr, plan, failures)),
    ]
    for relay in relays:
        relay.daemon = True
        relay.start()

    def stop(number: signal.Signals, times: int) -> None:
        name = "TERM" if times == 1 and number != signal.SIGINT else "INT"
        threading.Thread(target=signal_hosts, args=(plan, env, name), daemon=True).start()

    with _stops_passed_on(stop):
        status = _wait(process, failures, lambda name: signal_hosts(plan, env, name))
    for relay in relays:
        relay.join(timeout=5.0)
    if status or failures.hosts:
        clean_up(plan, env, range(len(plan.hosts)))
    return failures.status or status


def _end_now(number: int, _: object) -> NoReturn:
    """Nothing has been started yet: end as the signal would, but tidy up."""
    raise SystemExit(exit_status(-number))


class _Failures:
    """The hosts that have ended badly, first one first.

    Attributes:
        hosts: statuses by host.
        since: when the first one did.
        grace: seconds that the others get from then on.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self.hosts: dict[str, int] = {}
        self.since: float | None = None
        self.grace = _GRACE
        self._meets = plan.meets

    def note(self, host: str, status: int) -> int:
        """A host's agent has ended; returns its status, for people."""
        if status == NOTHING_STARTED:
            status = EXIT_USER_ERROR
            # Agents that meet start no rank before all have come: the others wait for this one.
            self.grace = 0.0 if self._meets else self.grace
        if status and host not in self.hosts:
            self.hosts[host] = status
            self.since = self.since or time.monotonic()
        return status

    @property
    def status(self) -> int:
        """That of the first one; 0 if none has."""
        return next(iter(self.hosts.values()), 0)


def _relay(source: IO[str], target: IO[str], plan: LaunchPlan, failures: _Failures) -> None:
    """Show what the hosts say: pdsh puts the host's name before each line, which the first needs not."""
    first = plan.hosts[0].host.rpartition("@")[2] + ": "
    for line in source:
        match = _ENDED.match(line)
        if match is not None:
            status = failures.note(match[1], int(match[2]))
            if status == plan.told_status:
                continue
            line = f"deepy.py: host {match[1]} ended with status {status}\n"
        try:
            target.write(line.removeprefix(first))
            target.flush()
        except BrokenPipeError:
            say_no_more(target)  # what the hosts say is still taken, or they would wait for it


@contextmanager
def _stops_passed_on(stop: Callable[[signal.Signals, int], None]) -> Iterator[None]:
    """Within the block, signals that ask for a stop call ``stop`` with their number and count."""
    counts = itertools.count(1)
    asking = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    with handled(asking, lambda number, _: stop(signal.Signals(number), next(counts))):
        yield


def _wait(
    process: subprocess.Popen[Any],
    failures: _Failures | None = None,
    send: Callable[[str], None] | None = None,
) -> int:
    """Wait for the launcher; where one host has failed, stop what does not end by itself.

    Returns:
        Its status, 128 + number where a signal has ended it.
    """
    asked_at = forced_at = None
    while True:
        try:
            return exit_status(process.wait(timeout=_LOOK))
        except subprocess.TimeoutExpired:
            pass
        if failures is None or send is None or failures.since is None:
            continue
        now = time.monotonic()
        if asked_at is None and now - failures.since > failures.grace:
            asked_at = now
            sys.stderr.write("deepy.py: the other hosts are being stopped\n")
            send("TERM")
        elif asked_at is not None and forced_at is None and now - asked_at > _FORCE:
            forced_at = now
            send("INT")
            send("INT")  # the second one kills
        elif forced_at is not None and now - forced_at > _LOOK * 25:
            process.kill()
