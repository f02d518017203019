"""data_local_cache_dir: copied once per node, verified, kept for the next job, never more than fits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from megatron.data import local_cache, local_copy
from megatron.data.datasets import DataSplits, build_datasets
from megatron.data.indexed_dataset import make_dataset
from megatron.data.local_cache import Lease, LocalCache, stage
from megatron.data.local_copy import Source
from megatron.data.splits import SampleCounts
from megatron.errors import BarrierError, DataError
from megatron.runtime.node_work import Progress
from megatron.runtime.world import World
from tests.data.token_files import data_args, letters, write_documents
from tests.support.ranks import run_ranks

ROOT = Path(__file__).resolve().parents[2]
COPY = local_cache._OVERHEAD  # bytes that a copy of so little counts for, and a little more


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "data" / "d", letters(5))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "cache"


def have(root: Path, *prefixes: Path, limit: int | None = None) -> tuple[list[str], Lease]:
    sources = [Source.of(str(prefix)) for prefix in prefixes]
    return LocalCache(root, limit).stage(sources, Progress())


def copies(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def several(tmp_path: Path, count: int) -> list[Path]:
    return [write_documents(tmp_path / "data" / f"d{i}", letters(5 + i)) for i in range(count)]


# --- a copy


def test_a_copy_is_made_once_and_is_the_same(prefix: Path, root: Path) -> None:
    prefixes, lease = stage([str(prefix)], root, World())
    assert lease is not None
    for ending in (".bin", ".idx"):
        assert Path(prefixes[0] + ending).read_bytes() == Path(f"{prefix}{ending}").read_bytes()
    times = [path.stat().st_ctime_ns for path in Path(prefixes[0]).parent.glob("tokens.*")]
    assert stage([str(prefix)], root, World())[0] == prefixes
    assert [p.stat().st_ctime_ns for p in Path(prefixes[0]).parent.glob("tokens.*")] == times


@pytest.mark.parametrize("change", ["content", "touch", "repair", "path"])
def test_what_changes_is_copied_anew(prefix: Path, root: Path, change: str) -> None:
    have(root, prefix)
    if change == "content":
        write_documents(prefix, letters(8))
    elif change == "touch":
        os.utime(f"{prefix}.bin", ns=(1, 1))
    elif change == "repair":  # as rsync does: other bytes, the same size and time
        data = Path(f"{prefix}.bin")
        before, content = data.stat(), bytearray(data.read_bytes())
        content[0] ^= 1
        data.write_bytes(content)
        os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        other = prefix.parent.parent / "moved"
        prefix.parent.rename(other)
        prefix = other / "d"
    (key,), _ = have(root, prefix)
    assert len(copies(root)) == 2
    assert len(make_dataset(root / key / "tokens")) == len(make_dataset(prefix))


def test_a_copy_that_is_cut_is_made_anew(prefix: Path, root: Path) -> None:
    (key,), _ = have(root, prefix)
    os.truncate(root / key / "tokens.bin", 3)
    assert have(root, prefix)[0] == [key]
    assert make_dataset(root / key / "tokens")[4].tolist() == letters(5)[4]
    assert copies(root) == {key}


def test_a_disk_that_returns_something_else_is_found(
    prefix: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = local_copy.write_at
    monkeypatch.setattr(
        local_copy, "write_at", lambda d, piece, first: write(d, b"?" + piece[1:], first)
    )
    with pytest.raises(DataError, match=r"the disk fails"):
        have(root, prefix)
    assert copies(root) == set()


def test_a_source_that_changes_meanwhile_is_not_used(
    prefix: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = local_copy.write_at

    def touch(descriptor: int, piece: bytes, first: int) -> None:
        write(descriptor, piece, first)
        os.utime(f"{prefix}.idx", ns=(1, 1))

    monkeypatch.setattr(local_copy, "write_at", touch)
    with pytest.raises(DataError, match=r"d\.idx: was changed while it was copied"):
        have(root, prefix)
    assert copies(root) == set()


def test_a_killed_copy_leaves_nothing_that_is_used(prefix: Path, root: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from megatron.data import local_copy\n"
        "from megatron.data.local_cache import stage; from megatron.runtime.world import World\n"
        "write = local_copy.write_at\n"
        "def die(descriptor, piece, first):\n"
        "    write(descriptor, piece[:50], first); os.kill(os.getpid(), signal.SIGKILL)\n"
        "local_copy.write_at = die; stage([sys.argv[1]], Path(sys.argv[2]), World())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(prefix), str(root)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    (left,) = copies(root)
    assert left.startswith(".partial-")
    (key,), _ = have(root, prefix)
    assert copies(root) == {key}
    assert make_dataset(root / key / "tokens")[4].tolist() == letters(5)[4]


# --- room


def test_what_is_unused_for_longest_goes_first(tmp_path: Path, root: Path) -> None:
    first, second, third = several(tmp_path, 3)
    limit = 2 * COPY + 2000
    (key_1,) = have(root, first, limit=limit)[0]
    (key_2,) = have(root, second, limit=limit)[0]
    for age, key in ((100, key_2), (200, key_1)):
        then = time.time() - age
        os.utime(root / key / "manifest.json", (then, then))
    have(root, first, limit=limit)  # used now
    (key_3,) = have(root, third, limit=limit)[0]
    assert copies(root) == {key_1, key_3}


def test_what_is_no_copy_is_left_alone(tmp_path: Path, root: Path) -> None:
    first, second = several(tmp_path, 2)
    (root / "results").mkdir(parents=True)
    (root / "results" / "numbers").write_bytes(b"x" * 2 * COPY)
    for prefix in (first, second):
        have(root, prefix, limit=COPY + 400)
    assert copies(root) == {"results", Source.of(str(second)).key}
    assert (root / "results" / "numbers").stat().st_size == 2 * COPY


def test_what_a_living_job_uses_stays(tmp_path: Path, root: Path) -> None:
    first, second = several(tmp_path, 2)
    limit = COPY + 2000
    (key,), lease = have(root, first, limit=limit)
    with pytest.raises(DataError, match=r"(?s)no room .* more in use by other jobs"):
        have(root, second, limit=limit)
    assert copies(root) == {key}
    del lease  # as when its process ends
    (other,) = have(root, second, limit=limit)[0]
    assert copies(root) == {other}


def test_nothing_goes_in_vain(tmp_path: Path, root: Path) -> None:
    first, second, third = several(tmp_path, 3)
    (key,) = have(root, first)[0]
    with pytest.raises(BarrierError) as caught:
        stage([str(second), str(third)], root, World(), limit=COPY + 2000)
    for part in (str(root), "data_local_cache_limit_gb", "take data_local_cache_dir out"):
        assert part in str(caught.value)
    assert copies(root) == {key}


def test_a_disk_that_is_too_small_is_said_before_anything_is_copied(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = several(tmp_path, 2)
    have(root, first)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    (other,) = have(root, second)[0]  # in the place of the first
    assert copies(root) == {other}
    with pytest.raises(DataError, match=r"no room .*\n.* 100 free on the disk"):
        have(root, first, second)


def test_a_folder_that_cannot_be_made_is_said_with_its_key(prefix: Path) -> None:
    with pytest.raises(BarrierError, match=r"(?s)data_local_cache_dir: /dev/null/x.*to do: name a"):
        stage([str(prefix)], Path("/dev/null/x"), World())


# --- jobs and ranks


def stage_as_a_job_of_its_own(world: World, prefix: Path, root: Path) -> tuple[int, list[str]]:
    """Each rank is a job; the one that copies does so slowly."""
    made: list[Path] = []
    copy = local_copy.copy

    def slow(source: Source, folder: Path, progress: Progress) -> None:
        time.sleep(0.5)
        made.append(folder)
        copy(source, folder, progress)

    local_cache.copy = slow  # type: ignore[attr-defined]
    world.barrier()
    prefixes, _ = stage([str(prefix)], root, World())
    return len(made), [row.tolist() for row in make_dataset(prefixes[0])]  # type: ignore[misc]


@pytest.mark.ranks
def test_two_jobs_that_race_copy_once(prefix: Path, root: Path) -> None:
    found = run_ranks(2, stage_as_a_job_of_its_own, prefix, root)
    assert sorted(made for made, _ in found) == [0, 1]
    assert [rows for _, rows in found] == [letters(5)] * 2


def two_nodes_of_two(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}


def stage_on_two_nodes(world: World, prefix: Path, root: Path) -> tuple[str, bool]:
    prefixes, lease = stage([str(prefix)], root / f"node-{world.node_rank}", world)
    return prefixes[0], lease is not None


@pytest.mark.ranks
def test_each_node_has_its_copy(prefix: Path, root: Path) -> None:
    found = run_ranks(4, stage_on_two_nodes, prefix, root, env_of_rank=two_nodes_of_two)
    places, holds = zip(*found, strict=True)
    assert holds == (True, False, True, False)
    assert places[0] == places[1] != places[2] == places[3]
    assert {path.name for path in root.iterdir()} == {"node-0", "node-1"}


# --- a run


def start(tmp_path: Path, **changes: Any) -> DataSplits:
    paths = tuple(str(tmp_path / "data" / f"d{number}") for number in range(2))
    args = data_args(tmp_path, data_path=None, train_data_paths=paths, **changes)
    return build_datasets(
        args, seq_length=8, seed=1234, wanted=SampleCounts(20, 0, 0), world=World()
    )


@pytest.mark.parametrize(
    "how",
    [{}, {"data_impl": "cached"}, {"mmap_warmup": True}, {"data_local_cache_limit_gb": 1.0}],
    ids=str,
)
def test_a_blend_reads_the_copies_and_is_the_same(
    tmp_path: Path, root: Path, how: dict[str, Any]
) -> None:
    several(tmp_path, 2)
    plain = start(tmp_path)
    index = sorted((tmp_path / "data" / "index_store").iterdir())
    staged = start(tmp_path, data_local_cache_dir=str(root), **how)
    assert sorted((tmp_path / "data" / "index_store").iterdir()) == index
    assert staged.index_keys == plain.index_keys
    assert staged.lease is not None
    assert plain.train is not None
    assert staged.train is not None
    expected = [sample.tokens.tolist() for sample in plain.train]  # type: ignore[attr-defined]
    for path in (tmp_path / "data").glob("*.bin"):  # the copies are what is read
        path.write_bytes(bytes(path.stat().st_size))
    assert [sample.tokens.tolist() for sample in staged.train] == expected  # type: ignore[attr-defined]
