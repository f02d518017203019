"""Real processes for tests in which ranks matter.

:func:`run_ranks` starts N processes that form a gloo process group over loopback and calls one
function in each of them::

    def sum_of_ranks(world: World, factor: int) -> int:
        return sum(world.all_gather(world.rank * factor))

    assert run_ranks(2, sum_of_ranks, 10) == [10, 10]

The function must be importable by name (module level). A fork server that has imported torch and
DeepSpeed already makes each world cost well under a second beyond the work itself.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import random
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preload"])
# Longer than a world ever takes, even where the disk of a shared machine stalls for a minute.
_TIMEOUT = 300.0
# What ranks that are late get to write down where they are.
_LAST_WORDS = 5.0


@dataclass
class Outcome:
    """How one rank ended: its value, or the text of its error with the traceback, or a bare exit code."""

    rank: int
    value: Any = None
    error: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0


def free_port() -> int:
    """A port for a world that starts seconds from now.

    Not one that the system would give: it gives those to others meanwhile, and two worlds that are started
    beside each other would meet at one. Theirs begin at 32768.
    """
    ports = random.SystemRandom()  # what tests seed shall not make two processes choose alike
    while True:
        port = ports.randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _rank_main(
    pipe: multiprocessing.connection.Connection,
    rank: int,
    size: int,
    port: int,
    env: dict[str, str],
    timeout: float,
    stacks: Path,
    cores: Collection[int] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    os.environ.update(variables | env)
    faulthandler.dump_traceback_later(timeout, file=stacks.open("w"))
    start = time.monotonic()
    try:
        from megatron.runtime.process import end_process, start_process

        world = start_process()
        value = function(world, *args)
        pipe.send(Outcome(rank, value=value, seconds=time.monotonic() - start))
        end_process()
    except BaseException:
        seconds = time.monotonic() - start
        pipe.send(Outcome(rank, error=traceback.format_exc(), seconds=seconds))
        pipe.close()
        os._exit(1)
    pipe.close()
    os._exit(0)


def run_outcomes(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = _TIMEOUT,
    env: dict[str, str] | None = None,
    env_of_rank: Callable[[int], dict[str, str]] | None = None,
    cores: Collection[int] | None = None,
) -> list[Outcome]:
    """Like :func:`run_ranks`, but failures are returned as :class:`Outcome` too.

    ``env_of_rank`` gives variables of one rank, such as another ``LOCAL_RANK`` for a second "node".
    ``cores`` are those that the ranks may run on; by default all of the machine's. Ranks that have not
    ended after ``timeout`` seconds are killed and come back with exit code -9, and with where each of
    their threads was.
    """
    with tempfile.TemporaryDirectory(prefix="ranks_") as stacks:
        return _outcomes(size, function, args, timeout, env or {}, env_of_rank, Path(stacks), cores)


def _outcomes(
    size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout: float,
    env: dict[str, str],
    env_of_rank: Callable[[int], dict[str, str]] | None,
    stacks: Path,
    cores: Collection[int] | None,
) -> list[Outcome]:
    port = free_port()
    started = []
    for rank in range(size):
        ours, theirs = _context.Pipe(duplex=False)
        (stacks / str(rank)).touch()
        variables = env | (env_of_rank(rank) if env_of_rank else {})
        process = _context.Process(
            target=_rank_main,
            args=(
                theirs,
                rank,
                size,
                port,
                variables,
                timeout,
                stacks / str(rank),
                cores,
                function,
                args,
            ),
        )
        process.start()
        theirs.close()
        started.append((process, ours))
    deadline = time.monotonic() + timeout + _LAST_WORDS
    outcomes = []
    for rank, (_, pipe) in enumerate(started):
        outcome = Outcome(rank)
        try:
            if pipe.poll(max(0.0, deadline - time.monotonic())):
                outcome = pipe.recv()
        except EOFError:
            pass  # the process was killed before it could say anything: its exit code tells
        outcomes.append(outcome)
    for outcome, (process, pipe) in zip(outcomes, started, strict=True):
        process.join(max(0.1, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
            where = (stacks / str(outcome.rank)).read_text()
            outcome.error = f"not ended after {timeout:.0f} s\n{where}"
        outcome.exit_code = process.exitcode
        pipe.close()
    return outcomes


def run_ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = _TIMEOUT,
    env: dict[str, str] | None = None,
    env_of_rank: Callable[[int], dict[str, str]] | None = None,
    cores: Collection[int] | None = None,
) -> list[Any]:
    """Call ``function(world, *args)`` in ``size`` processes and return their values in rank order.

    Return plain values or NumPy arrays: a tensor would be shared with a process that is gone.

    Raises:
        AssertionError: a rank raised, was killed, or did not end within ``timeout`` seconds.
    """
    outcomes = run_outcomes(
        size, function, *args, timeout=timeout, env=env, env_of_rank=env_of_rank, cores=cores
    )
    failed = [o for o in outcomes if o.error is not None or o.exit_code != 0]
    if failed:
        first = min(failed, key=lambda o: (o.error is None, o.seconds))
        raise AssertionError(
            f"{len(failed)} of {size} ranks failed; first: rank {first.rank}, "
            f"exit code {first.exit_code}\n{first.error or '(no error text)'}"
        )
    return [o.value for o in outcomes]
