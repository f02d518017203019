"""Chunks through worker processes and back in their order, in bounded memory.

The pool is one loop without threads. A worker holds one chunk at a time and is only sent the next
when it has answered, so that neither side ever waits to write while the other does too. Meanwhile the
loop reads ahead. Workers are plain child processes of this interpreter: they do not import the
parent's main module, and they inherit nothing but their own connection, so that a dead worker is seen
as the end of its connection, and a dead parent likewise.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from megatron.errors import DataError, NeoXError
from megatron.preprocessing.encoding import EncodedChunk, EncoderRecipe
from megatron.preprocessing.readers import TextChunk
from megatron.preprocessing.worker import Failure

# Bounds on what is read and not yet handed on, in chunks per worker and in text bytes. One chunk is
# always allowed, however large.
_CHUNKS_PER_WORKER = 4
_BYTES_IN_FLIGHT = 64 * 1024 * 1024

_PATIENCE_S = 10.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    number: int = -1  # of the chunk it holds
    chunk: TextChunk | None = None


class WorkerPool:
    """Worker processes that all follow one recipe. A context manager: leaving it ends them.

    Args:
        recipe: how each worker makes its encoder.
        workers: number of processes, from 1 on.
    """

    def __init__(self, recipe: EncoderRecipe, workers: int) -> None:
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_start_worker())
            for worker in self._workers:
                _send(worker, recipe)
        except BaseException:
            self._end(kill=True)
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(kill=kind is not None)

    def encode(self, chunks: Iterable[TextChunk]) -> Iterator[EncodedChunk]:
        """What becomes of each chunk, in the order of ``chunks``, which is read as far as needed.

        The first error in the order of the input is the one raised, whichever worker met one first.

        Raises:
            NeoXError: a chunk, or the reading of the next one, failed; or a worker died.
        """
        order = _InOrder(len(self._workers))
        source = iter(chunks)
        ahead: deque[tuple[int, TextChunk]] = deque()
        reading_error: NeoXError | None = None
        at_end = False
        while True:
            yield from order.ready()
            idle = [worker for worker in self._workers if worker.chunk is None]
            while idle and ahead:
                worker = idle.pop()
                worker.number, worker.chunk = ahead.popleft()
                _send(worker, worker.chunk)
            busy = [worker for worker in self._workers if worker.chunk is not None]
            may_read = not at_end and order.has_room()
            if not busy and not may_read:
                break
            answered = wait([w.connection for w in busy], timeout=0 if may_read else None)
            for worker in busy:
                if worker.connection in answered:
                    order.put(worker.number, _receive(worker))
            if may_read and not answered:
                try:
                    chunk = next(source, None)
                except NeoXError as error:  # raised below, after the errors of earlier lines
                    reading_error, chunk = error, None
                at_end = chunk is None
                if chunk is not None:
                    ahead.append((order.register(chunk), chunk))
        if reading_error is not None:
            raise reading_error

    def _end(self, kill: bool) -> None:
        for worker in self._workers:
            if kill:
                worker.process.kill()
            worker.connection.close()
        for worker in self._workers:
            try:
                worker.process.wait(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


class _InOrder:
    """Answers that come in any order, handed on in the order of their chunks; counts what is held."""

    def __init__(self, workers: int) -> None:
        self._limit = _CHUNKS_PER_WORKER * workers
        self._sizes: deque[int] = deque()  # text bytes of each chunk that is held, oldest first
        self._bytes = 0
        self._next = 0  # number of the oldest chunk that is held
        self._answers: dict[int, EncodedChunk | Failure] = {}

    def has_room(self) -> bool:
        """Whether one more chunk may be read."""
        return not self._sizes or (
            len(self._sizes) < self._limit and self._bytes < _BYTES_IN_FLIGHT
        )

    def register(self, chunk: TextChunk) -> int:
        """Number of a chunk that has just been read."""
        self._sizes.append(len(chunk.text))
        self._bytes += len(chunk.text)
        return self._next + len(self._sizes) - 1

    def put(self, number: int, answer: EncodedChunk | Failure) -> None:
        self._answers[number] = answer

    def ready(self) -> Iterator[EncodedChunk]:
        while self._next in self._answers:
            answer = self._answers.pop(self._next)
            self._next += 1
            self._bytes -= self._sizes.popleft()
            if isinstance(answer, Failure):
                raise DataError(answer.text) if answer.is_users else RuntimeError(answer.text)
            yield answer


def _start_worker() -> _Worker:
    ours, theirs = multiprocessing.Pipe(duplex=True)
    # As multiprocessing's own spawn does: the child finds modules where we find them.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from megatron.preprocessing.worker import main; main({theirs.fileno()})"
    )
    # One process is one core's worth of work: no thread pools inside.
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C goes to the parent alone
        )
    return _Worker(process, ours)


def _send(worker: _Worker, message: EncoderRecipe | TextChunk) -> None:
    try:
        worker.connection.send(message)
    except ConnectionError as error:
        raise _death(worker) from error


def _receive(worker: _Worker) -> EncodedChunk | Failure:
    try:
        answer: EncodedChunk | Failure = worker.connection.recv()
    except (EOFError, OSError) as error:
        raise _death(worker) from error
    worker.chunk = None
    return answer


def _death(worker: _Worker) -> DataError:
    """The error for a worker whose connection has ended."""
    try:
        status = worker.process.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        how = "closed its connection"
    else:
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with {status}"
        )
    at = f" at {worker.chunk.place(worker.chunk.first_line)} on" if worker.chunk else ""
    return DataError(
        f"worker process {worker.process.pid} {how}{at}\n"
        "  The kernel kills what takes too much memory (see `dmesg`): try fewer --workers"
    )
