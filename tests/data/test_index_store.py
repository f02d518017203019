"""Index maps that are built once and shared: cold, warm, changed, cut, read-only, killed, racing."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_files import data_args, letters, write_documents

from megatron.data import index_store
from megatron.data.datasets import DataSplits, build_datasets, index_task
from megatron.data.index_maps import ARRAY_NAMES
from megatron.data.plan import plan_indexes
from megatron.data.recipes import IndexRecipe
from megatron.data.sources import store_of
from megatron.data.split_plan import DataPlan
from megatron.data.splits import SampleCounts
from megatron.errors import DataError, NeoXError
from megatron.runtime import fs_barrier
from megatron.runtime.fs_barrier import build_or_wait
from megatron.runtime.world import World
from tests.support.late_listing import LateListing
from tests.support.ranks import run_outcomes, run_ranks

Arrays = dict[str, list[Any]]


def start(
    prefix: Path,
    world: World | None = None,
    *,
    seq_length: int = 8,
    seed: int = 1234,
    **changes: Any,
) -> DataSplits:
    return build_datasets(
        data_args(prefix, **changes),
        seq_length=seq_length,
        seed=seed,
        wanted=SampleCounts(6, 2, 2),
        world=world or World(),
    )


def arrays_of(data: DataSplits) -> Arrays:
    assert data.train is not None
    return {name: getattr(data.train.maps, name).tolist() for name in ARRAY_NAMES}


def mtimes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "data" / "d", letters(5))


def the_maps(prefix: Path) -> Path:
    (manifest,) = (prefix.parent / "index_store").glob("*/manifest.json")
    return manifest.parent


# --- what is on the disk


def test_arrays_are_plain_npy_files_and_the_manifest_says_it_all(prefix: Path) -> None:
    expected = arrays_of(start(prefix))
    folder = the_maps(prefix)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for name in ARRAY_NAMES:
        array = np.load(folder / f"{name}.npy", allow_pickle=False)
        assert array.tolist() == expected[name]
        entry = manifest["arrays"][name]
        assert entry["shape"] == list(array.shape)
        assert np.dtype(entry["dtype"]) == array.dtype
        assert entry["bytes"] == (folder / entry["file"]).stat().st_size
    recipe = manifest["recipe"]
    assert IndexRecipe(**recipe).key == manifest["key"] == folder.name
    assert (recipe["bin_bytes"], recipe["first_document"], recipe["stop_document"]) == (110, 0, 5)
    assert (recipe["epochs"], recipe["seq_length"], recipe["seed"]) == (1, 8, 1234)
    assert (recipe["order"], recipe["packing"]) == ("neox", "packed")


def test_data_that_changes_after_the_look_is_not_built_from(prefix: Path) -> None:
    settings = data_args(prefix)
    store = store_of(settings)

    def look() -> DataPlan:
        plan = plan_indexes(settings, store, seq_length=8, seed=1, wanted=SampleCounts(6, 0, 0))
        write_documents(prefix, [[1], *letters(3), list(range(21))])  # as many, of as many bytes
        return plan

    task = index_task(settings, store, look)
    with pytest.raises(DataError, match=r"d\.idx: was changed between"):
        build_or_wait(task, World(), use_shared_fs=True, timeout_s=10)
    assert list(store.root.glob("*/manifest.json")) == []


def test_mapped_arrays_are_read_only_and_keep_no_descriptor(prefix: Path) -> None:
    start(prefix)
    before = len(os.listdir("/proc/self/fd"))
    opened = [start(prefix) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert opened[0].train is not None
    with pytest.raises(ValueError, match="read-only"):
        opened[0].train.maps.doc_idx[0] = 1


def test_every_input_has_a_key_of_its_own() -> None:
    base: dict[str, Any] = {
        "idx_sha256": "a",
        "bin_bytes": 1,
        "first_document": 0,
        "stop_document": 5,
        "tokens_per_epoch": 55,
        "epochs": 1,
        "seq_length": 8,
        "seed": 1,
        "order": "neox",
    }
    others: dict[str, Any] = {
        "idx_sha256": "b",
        "bin_bytes": 2,
        "first_document": 1,
        "stop_document": 6,
        "tokens_per_epoch": 56,
        "epochs": 2,
        "seq_length": 9,
        "seed": 2,
        "order": "epochs",
        "packing": "unpacked",
        "options": {"allow_chopped": True},
        "companions": {"label": "c"},
        "format_version": 2,
    }
    keys = {IndexRecipe(**base).key}
    keys |= {IndexRecipe(**(base | {name: value})).key for name, value in others.items()}
    assert len(keys) == 1 + len(others)
    assert set(others) == set(IndexRecipe.__dataclass_fields__)


# --- cold, warm, changed, damaged


def test_a_warm_start_writes_nothing_and_reads_headers(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = arrays_of(start(prefix))
    before = mtimes(prefix.parent)
    monkeypatch.setattr(index_store, "content_hash", None)  # calling it would raise
    assert arrays_of(start(prefix)) == expected
    assert mtimes(prefix.parent) == before


def test_changed_data_is_indexed_again(prefix: Path) -> None:
    assert max(arrays_of(start(prefix))["doc_idx"]) == 4
    write_documents(prefix, letters(8))
    assert sorted(set(arrays_of(start(prefix))["doc_idx"])) == list(range(8))
    # The same sizes of both files, other lengths of the documents.
    write_documents(prefix, [[1] * 12, [2] * 10, *letters(6)])
    assert [0, 0] in arrays_of(start(prefix))["sample_idx"]
    assert len(list((prefix.parent / "index_store").glob("*/manifest.json"))) == 3


@pytest.mark.parametrize(
    "change",
    [{"split": "4,1,0"}, {"seed": 7}, {"seq_length": 5}, {"data_order": "epochs"}],
    ids=str,
)
def test_another_configuration_has_an_index_of_its_own(
    prefix: Path, change: dict[str, Any]
) -> None:
    first, folder = arrays_of(start(prefix)), the_maps(prefix)
    before = mtimes(folder)
    other = arrays_of(start(prefix, **change))
    # The same as where nothing was there before.
    fresh = write_documents(prefix.parent.parent / "fresh" / "d", letters(5))
    assert other == arrays_of(start(fresh, **change)) != first
    assert mtimes(folder) == before
    assert arrays_of(start(prefix)) == first


@pytest.mark.parametrize("damage", ["cut", "remove", "manifest"])
def test_damaged_maps_are_built_again(prefix: Path, damage: str) -> None:
    expected = arrays_of(start(prefix))
    folder = the_maps(prefix)
    if damage == "cut":
        os.truncate(folder / "sample_idx.npy", 150)
    elif damage == "remove":
        (folder / "shuffle_idx.npy").unlink()
    else:
        os.truncate(folder / "manifest.json", 60)
    assert arrays_of(start(prefix)) == expected
    assert {path.name for path in (prefix.parent / "index_store").iterdir()} == {
        folder.name,
        "contents",
        "fingerprints",
    }


def test_verify_compares_every_byte(prefix: Path) -> None:
    train = start(prefix).train
    assert train is not None
    train.maps.verify()
    with open(the_maps(prefix) / "doc_idx.npy", "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x01\x00\x00\x01")
    with pytest.raises(DataError, match=r"doc_idx.npy: SHA-256 is"):
        train.maps.verify()


def test_the_index_goes_to_the_cache_folder_where_one_is_named(
    prefix: Path, tmp_path: Path
) -> None:
    start(prefix, index_cache_dir=str(tmp_path / "deep" / "cache"))
    assert {path.name for path in prefix.parent.iterdir()} == {"d.bin", "d.idx"}
    assert len(list((tmp_path / "deep" / "cache").glob("*/manifest.json"))) == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter too."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_nobody(action: Callable[[], str]) -> str:
    """What ``action`` returns in a process without root's rights."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            os.write(writer, action().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read().decode()
    os.waitpid(pid, 0)
    return text


def test_a_read_only_data_folder_is_an_error_that_names_folder_and_key(open_folder: Path) -> None:
    prefix = write_documents(open_folder / "data" / "d", letters(5))

    def attempt() -> str:
        try:
            return f"documents {sorted(arrays_of(start(prefix))['doc_idx'])}"
        except NeoXError as error:
            return str(error)

    prefix.parent.chmod(0o555)
    text = as_nobody(attempt)
    assert str(prefix.parent / "index_store") in text
    assert "Permission denied" in text
    assert "index_cache_dir" in text
    assert len(text.splitlines()) <= 10

    # What somebody else has built there can be used.
    prefix.parent.chmod(0o755)
    start(prefix)
    for folder in (prefix.parent / "index_store", prefix.parent):
        folder.chmod(0o555)
    assert as_nobody(attempt) == "documents [0, 1, 2, 3, 4]"
    prefix.parent.chmod(0o755)


# --- two ranks


def start_slowly(world: World, prefix: Path, seconds: float) -> tuple[int, Arrays, float]:
    pieces = index_store.build_pieces

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return pieces(*args)

    index_store.build_pieces = slow  # type: ignore[assignment]
    begin = time.monotonic()
    arrays = arrays_of(start(prefix, world))
    return os.getpid(), arrays, time.monotonic() - begin


@pytest.mark.ranks
def test_a_slow_builder_is_waited_for(prefix: Path) -> None:
    (_, first, _), (_, second, waited) = run_ranks(2, start_slowly, prefix, 2.0)
    assert first == second
    assert waited > 2
    assert len(list((prefix.parent / "index_store").glob("*/manifest.json"))) == 1
    before = mtimes(prefix.parent)
    (_, third, _), (_, fourth, seconds) = run_ranks(2, start_slowly, prefix, 60.0)
    assert third == fourth == first
    assert seconds < 5
    assert mtimes(prefix.parent) == before


def start_late(world: World, prefix: Path) -> tuple[Arrays, float, list[str]]:
    """Entries of folders show up for rank 1 two seconds after rank 0 has made them."""
    late = LateListing(2.0)
    if world.rank == 1:
        fs_barrier.list_folder = late
        late(prefix.parent / "index_store")
    world.barrier()
    begin = time.monotonic()
    arrays = arrays_of(start(prefix, world))
    return arrays, time.monotonic() - begin, sorted(late.hid)


@pytest.mark.ranks
def test_what_a_network_file_system_shows_late_is_waited_for(prefix: Path) -> None:
    (prefix.parent / "index_store").mkdir()
    (first, _, _), (second, waited, hidden) = run_ranks(2, start_late, prefix)
    assert first == second
    assert the_maps(prefix).name in hidden
    assert waited > 2


def start_failing(world: World, prefix: Path) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("a fault in the builder")

    index_store.build_pieces = fail
    start(prefix, world)


@pytest.mark.ranks
def test_a_builder_that_raises_ends_all_with_its_words(prefix: Path) -> None:
    for outcome in run_outcomes(2, start_failing, prefix):
        assert outcome.error is not None
        assert "ValueError: a fault in the builder" in outcome.error
        assert outcome.seconds < 10
    assert max(arrays_of(start(prefix))["doc_idx"]) == 4


def start_and_die(world: World, prefix: Path) -> None:
    fs_barrier._DEAD_AFTER = 3.0  # type: ignore[misc]
    fs_barrier._LONGEST_PAUSE = 0.5  # type: ignore[misc]
    pieces = index_store.build_pieces

    def die(*args: Any) -> Any:
        yield next(pieces(*args))
        os.kill(os.getpid(), signal.SIGKILL)

    index_store.build_pieces = die
    start(prefix, world)


@pytest.mark.ranks
def test_a_killed_builder_leaves_nothing_that_is_ever_loaded(prefix: Path) -> None:
    killed, waiter = run_outcomes(2, start_and_die, prefix)
    assert killed.exit_code == -signal.SIGKILL
    assert waiter.error is not None
    assert "no sign of life" in waiter.error
    store = prefix.parent / "index_store"
    assert list(store.glob(".build-*/*/doc_idx.npy")) != []
    assert list(store.glob("*/manifest.json")) == []
    (_, first, _), (_, second, _) = run_ranks(2, start_slowly, prefix, 0.0)
    assert first == second
    assert sorted(first["doc_idx"]) == [0, 1, 2, 3, 4]


def start_as_a_job_of_its_own(world: World, prefix: Path) -> Arrays:
    pieces = index_store.build_pieces

    def together(*args: Any) -> Any:
        world.barrier()  # both have found nothing there
        return pieces(*args)

    index_store.build_pieces = together  # type: ignore[assignment]
    return arrays_of(start(prefix, World()))


@pytest.mark.ranks
def test_two_jobs_that_race_end_up_with_one_index(prefix: Path) -> None:
    first, second = run_ranks(2, start_as_a_job_of_its_own, prefix)
    assert first == second
    store = prefix.parent / "index_store"
    assert len(list(store.glob("*/manifest.json"))) == 1
    assert [path for path in store.iterdir() if path.name.startswith(".")] == []


def two_nodes(rank: int) -> dict[str, str]:
    return {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def start_on_own_disk(world: World, prefixes: list[Path]) -> Arrays:
    return arrays_of(start(prefixes[world.rank], world, use_shared_fs=False))


@pytest.mark.ranks
def test_nodes_with_their_own_disks_build_their_own(tmp_path: Path) -> None:
    prefixes = [write_documents(tmp_path / name / "d", letters(5)) for name in ("a", "b")]
    first, second = run_ranks(2, start_on_own_disk, prefixes, env_of_rank=two_nodes)
    assert first == second
    assert the_maps(prefixes[0]).name == the_maps(prefixes[1]).name

    write_documents(prefixes[1], letters(8))
    for outcome in run_outcomes(2, start_on_own_disk, prefixes, env_of_rank=two_nodes):
        assert outcome.error is not None
        assert "the token files differ between the nodes" in outcome.error
