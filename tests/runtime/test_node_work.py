"""Long work of one process per node: the others wait awake, and all hear of a failure at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from megatron.errors import BarrierError, DataError
from megatron.logging import get_logger
from megatron.runtime import node_work
from megatron.runtime.node_work import Progress, Stopped, work_on_nodes
from megatron.runtime.world import World
from tests.support.ranks import run_outcomes, run_ranks


def two_nodes_of_two(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}


def test_one_process_works_by_itself() -> None:
    def work(progress: Progress) -> str:
        progress.expect(10)
        progress.add(10)
        assert threading.current_thread() is not threading.main_thread()
        return "done"

    assert work_on_nodes(World(), work, what="the work") == "done"


def test_words_and_faults() -> None:
    def user_error(progress: Progress) -> None:
        raise DataError("no such file")

    def fault(progress: Progress) -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(BarrierError, match=r"^no such file$"):
        work_on_nodes(World(), user_error, what="the work")
    with pytest.raises(ZeroDivisionError, match="ours"):
        work_on_nodes(World(), fault, what="the work")


def test_work_that_gets_no_byte_is_given_up_and_stopped() -> None:
    ends: list[str] = []

    def work(progress: Progress) -> None:
        progress.expect(1000)
        progress.add(7)
        try:
            time.sleep(0.5)
            progress.add(1)
        except Stopped:
            ends.append("stopped")
            raise

    with pytest.raises(BarrierError, match=r"(?s)the work: not a byte more .* after 7 of 1,000"):
        work_on_nodes(World(), work, what="the work", stall_s=0.2)
    assert ends == ["stopped"]


def test_work_that_hangs_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_work, "_PATIENCE", 0.1)
    answers = threading.Event()  # as a file system that does not
    started = time.monotonic()
    with pytest.raises(BarrierError, match="not a byte more"):
        work_on_nodes(World(), lambda _: answers.wait(20), what="the work", stall_s=0.1)
    answers.set()
    assert time.monotonic() - started < 10


def test_a_log_gets_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def info(text: str, *args: Any) -> None:
        lines.append(text % args)

    monkeypatch.setattr(get_logger(node_work.__name__), "info", info)
    monkeypatch.setattr(node_work, "_LINE_PERIOD", 0.1)

    def work(progress: Progress) -> None:
        progress.expect(4 * 2**30)
        for _ in range(4):
            time.sleep(0.1)
            progress.add(2**30)

    work_on_nodes(World(), work, what="the work")
    assert 1 <= len(lines) <= 4
    assert all(line.startswith("the work: ") and " of 4.0 GiB, " in line for line in lines)


def work_here(world: World, seconds: float) -> tuple[int | None, float]:
    start = time.monotonic()

    def work(progress: Progress) -> int:
        time.sleep(seconds * (1 + world.node_rank))
        return world.rank

    return work_on_nodes(world, work, what="the work"), time.monotonic() - start


@pytest.mark.ranks
def test_all_wait_for_the_slowest_node() -> None:
    found = run_ranks(4, work_here, 0.5, env_of_rank=two_nodes_of_two)
    values, seconds = zip(*found, strict=True)
    assert values == (0, None, 2, None)
    assert min(seconds) > 1


def fail_on_one(world: World) -> None:
    def work(progress: Progress) -> None:
        if world.node_rank == 1:
            raise DataError("a bad disk")
        for _ in range(600):
            time.sleep(0.1)
            progress.add(1)

    work_on_nodes(world, work, what="the work")


@pytest.mark.ranks
def test_a_node_that_fails_ends_all_although_others_are_at_work() -> None:
    for outcome in run_outcomes(4, fail_on_one, env_of_rank=two_nodes_of_two):
        assert outcome.error is not None
        assert "BarrierError: rank 2 on " in outcome.error
        assert "a bad disk" in outcome.error
        assert outcome.seconds < 10
