"""One builds, the others wait: with real processes, slow, failing and killed builders."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron.errors import BarrierError, DataError
from megatron.runtime import fs_barrier, heartbeat
from megatron.runtime.fs_barrier import Task, build_or_wait, is_builder, open_alike
from megatron.runtime.leftovers import BUILD_PREFIX, FAILED_PREFIX
from megatron.runtime.world import World
from tests.support.ranks import run_outcomes, run_ranks

NAMES = ["one", "two"]


def is_whole(folder: Path) -> bool:
    return (folder / "content").is_file()


def task_at(root: Path, build: Any = None, prepare: Any = None) -> Task[list[str]]:
    """Two folders, each with a file that says which process made it."""

    def write(names: list[str], name: str, folder: Path) -> None:
        (folder / "content").write_text(f"{name} by {os.getpid()}")

    return Task(
        root=root,
        prepare=prepare or (lambda: NAMES),
        missing=lambda names: [name for name in names if not is_whole(root / name)],
        build=build or write,
        is_whole=is_whole,
        advice="set the_key to another folder",
    )


def have(world: World, root: Path, build: Any = None, **options: Any) -> list[str]:
    task = task_at(root, build, options.pop("prepare", None))
    options = {"use_shared_fs": True, "timeout_s": 60.0} | options
    assert build_or_wait(task, world, **options) == NAMES
    return [(root / name / "content").read_text() for name in NAMES]


def published(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


# --- one process


def test_who_builds() -> None:
    world = World(rank=2, size=4, local_rank=0, local_size=2, node_rank=1, num_nodes=2)
    assert not is_builder(world, use_shared_fs=True)
    assert is_builder(world, use_shared_fs=False)
    assert is_builder(replace(world, rank=0), use_shared_fs=True)
    assert not is_builder(replace(world, rank=3, local_rank=1), use_shared_fs=False)


def test_a_warm_start_writes_nothing(tmp_path: Path) -> None:
    first = have(World(), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    assert published(tmp_path) == set(NAMES)
    assert have(World(), tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before


def test_what_is_damaged_is_built_again(tmp_path: Path) -> None:
    have(World(), tmp_path)
    (tmp_path / "one" / "content").rename(tmp_path / "one" / "other")
    assert have(World(), tmp_path)[0] == f"one by {os.getpid()}"
    assert not (tmp_path / "one" / "other").exists()
    assert published(tmp_path) == set(NAMES)


def test_the_first_job_to_publish_wins(tmp_path: Path) -> None:
    def late(names: list[str], name: str, folder: Path) -> None:
        (folder / "content").write_text("mine")
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text("theirs")

    assert have(World(), tmp_path, late) == ["theirs", "theirs"]
    assert published(tmp_path) == set(NAMES)


def test_many_are_built_at_the_same_time_and_all_stop_at_the_first_failure(tmp_path: Path) -> None:
    names = [str(number) for number in range(40)]
    together, began = threading.Barrier(8), []

    def build(value: list[str], name: str, folder: Path) -> None:
        if int(name) < 8:
            together.wait(timeout=30)  # the first eight are under way at once, or this raises
        began.append(name)
        if name == "9":
            raise DataError("the builder's own words")
        (folder / "content").write_text(name)
        time.sleep(0.02)

    task = task_at(tmp_path, build, lambda: names)
    with pytest.raises(DataError, match="the builder's own words"):
        build_or_wait(task, World(), use_shared_fs=True, timeout_s=60.0)
    assert len(began) < 40
    assert all(is_whole(tmp_path / name) for name in map(str, range(8)))


def test_a_failure_leaves_its_words_and_nothing_half_built(tmp_path: Path) -> None:
    def fail(names: list[str], name: str, folder: Path) -> None:
        (folder / "content").write_text("half")
        raise DataError("the builder's own words")

    with pytest.raises(DataError, match="the builder's own words"):
        have(World(), tmp_path, fail)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(FAILED_PREFIX)
    assert (left / "failed.txt").read_text() == "the builder's own words"
    assert not (left / "one").exists()
    assert have(World(), tmp_path)[1] == f"two by {os.getpid()}"


def test_a_full_disk_is_said_with_the_key(tmp_path: Path) -> None:
    def full(names: list[str], name: str, folder: Path) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    with pytest.raises(BarrierError) as caught:
        have(World(), tmp_path, full)
    assert "No space left on device" in str(caught.value)
    assert "set the_key to another folder" in str(caught.value)


def test_a_builder_removes_what_dead_runs_left(tmp_path: Path) -> None:
    left = tmp_path / (BUILD_PREFIX + "dead")
    left.mkdir()
    os.utime(left, (time.time() - 660, time.time() - 660))
    have(World(), tmp_path)
    assert published(tmp_path) == set(NAMES)


def test_the_heartbeat_runs_while_its_parent_lives(tmp_path: Path) -> None:
    """In a parent whose interpreter is busy without a break, and no longer than that parent."""
    program = (
        "import ctypes, sys; from pathlib import Path; from megatron.runtime.heartbeat import Heartbeat\n"
        "beat = Heartbeat(Path(sys.argv[1])); print(beat._helper.pid, flush=True)\n"
        "ctypes.PyDLL(None).sleep(60)"  # PyDLL keeps the interpreter locked meanwhile
    )
    path = tmp_path / "heartbeat"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        helper = int(parent.stdout.readline())
        count, deadline = 0, time.monotonic() + 10
        while count < 1 and time.monotonic() < deadline:
            time.sleep(0.1)
            assert len(path.read_bytes()) == 21
            count = int(path.read_text())
        parent.kill()
    assert count >= 1
    deadline = time.monotonic() + 5
    while Path(f"/proc/{helper}/cmdline").exists() and time.monotonic() < deadline:
        if not Path(f"/proc/{helper}/cmdline").read_bytes():  # dead, not yet reaped
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{helper}").exists()


# --- the waiter's side, on a clock of its own


class Clock:
    """Time that passes in sleeps only, with things that happen at given seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.events: list[tuple[float, Any]] = []
        self.listings: list[float] = []
        monkeypatch.setattr(fs_barrier, "time", self)
        listing = fs_barrier.list_folder

        def list_folder(folder: Path) -> set[str]:
            self.listings.append(self.now)
            return listing(folder)

        monkeypatch.setattr(fs_barrier, "list_folder", list_folder)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()


def wait(root: Path, world: World, timeout_s: float = 1800.0) -> None:
    fs_barrier._wait_for(NAMES, "run", task_at(root), world, timeout_s)


WAITER = World(rank=1, size=2, local_rank=1, local_size=2, hostname="host-b")


def beating(root: Path, clock: Clock, until: float) -> None:
    """A heartbeat of the run every 2 seconds until ``until``."""
    folder = root / (BUILD_PREFIX + "run")
    folder.mkdir(parents=True)
    for count in range(int(until) // 2 + 1):
        beat = f"{count:020d}\n"
        clock.events.append(
            (2.0 * count, lambda beat=beat: (folder / "heartbeat").write_text(beat))
        )


def publish(root: Path) -> None:
    for name in NAMES:
        (root / name).mkdir()
        (root / name / "content").touch()


def looks_of(world: World, seconds: float) -> tuple[list[float], float]:
    """When a waiter lists the folder, if all is there after ``seconds``, and when it goes on."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)

        def list_folder(folder: Path) -> set[str]:
            clock.listings.append(clock.now)
            return set(NAMES) if clock.now >= seconds else set()

        patch.setattr(fs_barrier, "list_folder", list_folder)
        patch.setattr(fs_barrier, "_read", lambda path: f"{int(clock.now) // 2:020d}\n")
        task = replace(task_at(Path("nowhere")), is_whole=lambda folder: True)
        fs_barrier._wait_for(NAMES, "run", task, world, 1800.0)
        return clock.listings, clock.now


@pytest.mark.parametrize(("nodes", "local_size"), [(125, 8), (1, 64)])
def test_the_listings_of_a_node_stay_below_two_a_second(nodes: int, local_size: int) -> None:
    """1,000 ranks that wait for five minutes, and a node of many processes."""
    for node in range(nodes):
        listings: list[float] = []
        for local_rank in range(local_size):
            place = {"local_rank": local_rank, "local_size": local_size, "node_rank": node}
            world = replace(WAITER, rank=node * local_size + local_rank, num_nodes=nodes, **place)
            looks, end = looks_of(world, 300.0)
            assert 300 <= end <= 300 + max(fs_barrier._LONGEST_PAUSE, 0.5 * local_size)
            listings += looks
        listings.sort()
        assert len(listings) > 300
        assert all(
            later - earlier > 0.99 for earlier, later in zip(listings, listings[2:], strict=False)
        )


def test_a_name_that_a_network_file_system_hides_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    beating(tmp_path, clock, 20)
    publish(tmp_path)
    shown = fs_barrier.list_folder
    monkeypatch.setattr(
        fs_barrier,
        "list_folder",
        lambda root: shown(root) - (set(NAMES) if clock.now < 12 else set()),
    )
    wait(tmp_path, WAITER)
    assert 12 <= clock.now <= 12 + 5


def test_a_builder_without_a_sign_of_life_is_dead_after_30_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    beating(tmp_path, clock, 100)
    with pytest.raises(BarrierError) as caught:
        wait(tmp_path, WAITER)
    assert 130 <= clock.now <= 141
    for part in ("host-b", str(tmp_path / "one"), "no sign of life", "number 50"):
        assert part in str(caught.value)


def test_a_builder_that_never_showed_up_is_dead_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    (tmp_path / (BUILD_PREFIX + "another-run")).mkdir()
    (tmp_path / (BUILD_PREFIX + "another-run") / "heartbeat").write_text("1\n")
    with pytest.raises(BarrierError, match="none seen"):
        wait(tmp_path / "not-there", WAITER)
    assert 30 <= clock.now <= 41


def test_the_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    beating(tmp_path, clock, 1000)
    with pytest.raises(BarrierError) as caught:
        wait(tmp_path, WAITER, timeout_s=100.0)
    assert 100 <= clock.now <= 102
    assert "index_build_timeout_s (100 s) is over" in str(caught.value)


def test_a_failure_is_heard_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    beating(tmp_path, clock, 40)

    def fail(run: str) -> None:
        (tmp_path / (FAILED_PREFIX + run)).mkdir()
        (tmp_path / (FAILED_PREFIX + run) / "failed.txt").write_text(f"words of {run}")

    clock.events.append((40.5, lambda: fail("another-run")))
    clock.events.append((50.0, lambda: fail("run")))
    with pytest.raises(BarrierError, match="words of run"):
        wait(tmp_path, WAITER)
    assert 50 <= clock.now <= 56


# --- real ranks


def slow_build(names: list[str], name: str, folder: Path) -> None:
    time.sleep(1.0)
    (folder / "content").write_text(f"{name} by {os.getpid()}")


def have_slowly(world: World, root: Path) -> tuple[int, list[str]]:
    return os.getpid(), have(world, root, slow_build)


@pytest.mark.ranks
def test_two_ranks_one_builder(tmp_path: Path) -> None:
    (builder, first), (_, second) = run_ranks(2, have_slowly, tmp_path / "new" / "root")
    assert first == second == [f"one by {builder}", f"two by {builder}"]


def failing_build(names: list[str], name: str, folder: Path) -> None:
    if name == "two":
        raise DataError("no second one today")
    slow_build(names, name, folder)


def no_prepare() -> list[str]:
    raise DataError("nothing to prepare")


def have_failing(world: World, root: Path, early: bool) -> None:
    if early:
        have(world, root, prepare=no_prepare)
    else:
        have(world, root, failing_build)


@pytest.mark.ranks
@pytest.mark.parametrize("early", [True, False])
def test_the_builders_error_ends_all_ranks(tmp_path: Path, early: bool) -> None:
    words = "nothing to prepare" if early else "no second one today"
    for outcome in run_outcomes(2, have_failing, tmp_path, early):
        assert outcome.error is not None
        assert outcome.exit_code == 1
        kind = "DataError" if outcome.rank == 0 else "BarrierError"
        assert f"{kind}: {words}" in outcome.error
        assert outcome.seconds < 10


def suicidal_build(names: list[str], name: str, folder: Path) -> None:
    (folder / "content").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)


def have_killed(world: World, root: Path) -> None:
    fs_barrier._DEAD_AFTER = 3.0  # type: ignore[misc]
    fs_barrier._LONGEST_PAUSE = 0.5  # type: ignore[misc]
    have(world, root, suicidal_build)


@pytest.mark.ranks
def test_a_killed_builder_is_missed_and_the_next_start_builds(tmp_path: Path) -> None:
    killed, waiter = run_outcomes(2, have_killed, tmp_path)
    assert killed.exit_code == -signal.SIGKILL
    assert waiter.error is not None
    assert "no sign of life" in waiter.error
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(BUILD_PREFIX)
    assert (left / "one" / "content").read_text() == "half"
    assert have(World(), tmp_path)[0] == f"one by {os.getpid()}"


def locked_build(names: list[str], name: str, folder: Path) -> None:
    if name == "one":
        ctypes.PyDLL(None).sleep(4)  # no other thread of this interpreter runs meanwhile
    (folder / "content").touch()


def have_locked(world: World, root: Path) -> None:
    fs_barrier._DEAD_AFTER = heartbeat.PERIOD_S + 1  # type: ignore[misc]
    fs_barrier._LONGEST_PAUSE = 0.5  # type: ignore[misc]
    have(world, root, locked_build)


@pytest.mark.ranks
def test_a_builder_that_computes_without_a_break_is_alive(tmp_path: Path) -> None:
    run_ranks(2, have_locked, tmp_path)


def have_at_once(world: World, root: Path) -> list[str]:
    """Each rank is a job of its own; both have looked before either publishes."""

    def build(names: list[str], name: str, folder: Path) -> None:
        world.barrier()
        (folder / "content").write_text(f"{name} by {os.getpid()}")

    return have(World(), root, build)


@pytest.mark.ranks
def test_two_jobs_race_and_agree(tmp_path: Path) -> None:
    first, second = run_ranks(2, have_at_once, tmp_path)
    assert first == second
    assert published(tmp_path) == set(NAMES)


def two_nodes(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def have_on_own_disk(world: World, root: Path) -> tuple[int, list[str]]:
    assert world.num_nodes == 2
    return os.getpid(), have(world, root / f"node-{world.rank}", slow_build, use_shared_fs=False)


@pytest.mark.ranks
def test_each_node_builds_on_its_own_disk(tmp_path: Path) -> None:
    for pid, content in run_ranks(2, have_on_own_disk, tmp_path, env_of_rank=two_nodes):
        assert content == [f"one by {pid}", f"two by {pid}"]


def open_both(world: World, digests: list[str | None]) -> str:
    def open_here() -> tuple[str, str]:
        digest = digests[world.rank]
        if digest is None:
            raise DataError("cannot open mine")
        return f"opened {world.rank}", digest

    return open_alike(world, open_here, "maps")


@pytest.mark.ranks
def test_all_ranks_must_hold_the_same(tmp_path: Path) -> None:
    assert run_ranks(2, open_both, ["a", "a"]) == ["opened 0", "opened 1"]
    for digests, words in [(["a", "b"], "have different maps"), (["a", None], "cannot open mine")]:
        for outcome in run_outcomes(2, open_both, digests):
            assert outcome.error is not None
            assert words in outcome.error
