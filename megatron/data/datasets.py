"""From token files to three datasets whose i-th sample is the same on every rank.

One rank per file system looks at the data and builds what is missing; all map the result. See
:mod:`megatron.runtime.fs_barrier` for who waits for whom, :mod:`megatron.data.index_maps` for the
order of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megatron.data.blended_dataset import BlendedDataset
from megatron.data.facts import DataFacts, SplitFacts
from megatron.data.index_store import IndexStore
from megatron.data.indexed_dataset import MMapIndexedDataset, data_file_path
from megatron.data.local_cache import Lease, stage
from megatron.data.node_memory import hold_in_memory
from megatron.data.plan import plan_indexes
from megatron.data.progress import Progress
from megatron.data.recipes import BlendRecipe
from megatron.data.same_data import check_same_data
from megatron.data.sample_dataset import SampleDataset, Samples
from megatron.data.shares import blend_lines
from megatron.data.sources import DataSettings, open_source, store_of
from megatron.data.split_plan import DataPlan, SplitPlan
from megatron.data.splits import SampleCounts
from megatron.data.warmup import warm_up
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.runtime.fs_barrier import Task, build_or_wait, open_alike
from megatron.runtime.fs_probe import probe_file_systems
from megatron.runtime.world import World

__all__ = [
    "DataFacts",
    "DataSplits",
    "SampleDataset",
    "Samples",
    "SplitFacts",
    "build_datasets",
    "describe_difference",
]

log = get_logger(__name__)


@dataclass(frozen=True)
class DataSplits:
    """The datasets of a run.

    Attributes:
        train, valid, test: None where the run takes nothing from it or it is empty.
        index_keys: by split: equal keys mean the same samples in the same order. For checkpoints.
        order_facts: by split: what the key is made of, for a message about what differs.
        facts: numbers for people.
        files: the token files behind them.
        lease: keeps this node's copies of the token files (``data_local_cache_dir``) while it is held.
        train_plan: how the training split is made.
    """

    train: Samples | None
    valid: Samples | None
    test: Samples | None
    index_keys: Mapping[str, str]
    order_facts: Mapping[str, Mapping[str, Any]]
    facts: DataFacts
    files: tuple[MMapIndexedDataset, ...] = ()
    lease: Lease | None = None
    train_plan: SplitPlan | None = None

    def check_files(self) -> None:
        """Notice token files that have been cut since they were opened.

        Raises:
            DataError: one has.
        """
        for data in self.files:
            data.check_files()

    def progress_at(self, consumed: int) -> Progress | None:
        """Where the run stands in its training data after ``consumed`` samples, for a checkpoint.

        None where it may not change anyway: the order follows from how many samples are read.
        """
        plan = self.train_plan
        if self.train is None or plan is None or plan.sources[0].recipe.order != "epochs":
            return None
        keys = [source.key for source in plan.sources]
        given = dict(plan.leg.before) | dict(zip(keys, self.train.given_at(consumed), strict=True))
        paths = {source.key: source.path for source in plan.sources}
        return Progress(plan.order_key, plan.leg, consumed, given, paths)


def build_datasets(
    settings: DataSettings,
    *,
    seq_length: int,
    seed: int,
    wanted: SampleCounts,
    world: World,
    vocab_size: int | None = None,
    data_parallel_size: int | None = None,
    train_epochs: float | None = None,
    pad_id: int = 0,
    progress: Progress | None = None,
) -> DataSplits:
    """Open the data, have its index maps built where they are missing, and map them. All ranks call.

    Args:
        settings: which data, and how.
        seq_length: tokens per sample, less one.
        seed: of the order.
        wanted: samples that the run takes from each split.
        world: all ranks.
        vocab_size: ids must be below it; None checks nothing.
        data_parallel_size: ranks that read different samples; by default all.
        train_epochs: what the samples of the training split were counted by, if so.
        pad_id: fills samples that are shorter than the others.
        progress: where a run that is resumed stands in its training data.

    Raises:
        DataError, BarrierError: the data is missing, damaged or too little; see the message.
    """
    store = store_of(settings)
    probe_file_systems(
        store.root,
        world,
        use_shared_fs=settings.use_shared_fs,
        make_parents=settings.index_cache_dir is not None,
    )
    prepare = partial(
        plan_indexes,
        settings,
        store,
        seq_length=seq_length,
        seed=seed,
        wanted=wanted,
        vocab_size=vocab_size,
        data_parallel_size=data_parallel_size or world.size,
        train_epochs=train_epochs,
        progress=progress,
    )
    plan = build_or_wait(
        index_task(settings, store, prepare),
        world,
        use_shared_fs=settings.use_shared_fs,
        timeout_s=settings.index_build_timeout_s,
    )
    if not settings.use_shared_fs:
        check_same_data(plan, world)
    files, lease = _open_files(settings, plan, world)
    open_here = partial(
        _open, files, store, plan, seq_length=seq_length, vocab_size=vocab_size, pad_id=pad_id
    )
    splits = open_alike(world, open_here, f"index maps in {store.root}")
    if world.is_first:
        _tell(plan.facts, splits)
    return DataSplits(
        train=splits.get("train"),
        valid=splits.get("valid"),
        test=splits.get("test"),
        index_keys={name: split.order_key for name, split in plan.splits.items()},
        order_facts={name: split.order_facts() for name, split in plan.splits.items()},
        facts=plan.facts,
        files=tuple(files.values()),
        lease=lease,
        train_plan=plan.splits.get("train"),
    )


def _tell(facts: DataFacts, splits: Mapping[str, Samples]) -> None:
    for line in facts.warnings:
        log.warning("%s", line)
    for line in blend_lines(facts.splits, splits):
        log.info("%s", line)


def index_task(
    settings: DataSettings, store: IndexStore, prepare: Callable[[], DataPlan]
) -> Task[DataPlan]:
    """What is to be had in the store, for :func:`~megatron.runtime.fs_barrier.build_or_wait`."""

    def missing(plan: DataPlan) -> list[str]:
        return [key for key in plan.recipes() if not store.is_whole(store.root / key)]

    def build(plan: DataPlan, key: str, folder: Path) -> None:
        recipe = plan.recipes()[key]
        if isinstance(recipe, BlendRecipe):
            store.build_blend(recipe, folder)
        else:
            store.build(recipe, open_source(settings, plan.path_of(key)), folder)

    return Task(
        root=store.root,
        prepare=prepare,
        missing=missing,
        build=build,
        is_whole=store.is_whole,
        advice="set index_cache_dir to a folder that can be written and has space",
    )


def _open_files(
    settings: DataSettings, plan: DataPlan, world: World
) -> tuple[dict[str, MMapIndexedDataset], Lease | None]:
    """The token files by path: mapped, or in the memory of the node; and what keeps copies of them."""
    paths, lease = list(plan.files), None
    stall_s = settings.index_build_timeout_s
    if settings.data_local_cache_dir is not None:
        root, limit = Path(settings.data_local_cache_dir), settings.data_local_cache_limit_gb
        nbytes = None if limit is None else int(limit * 10**9)
        paths, lease = stage(paths, root, world, limit=nbytes, stall_s=stall_s)

    def open_here() -> tuple[list[MMapIndexedDataset], str]:
        # Sizes are compared with the builder's file by file; the paths may differ between nodes.
        return [
            _open_file(settings, path, *size)
            for path, size in zip(paths, plan.files.values(), strict=True)
        ], ""

    files = open_alike(world, open_here, "token files")
    if settings.data_impl == "cached":
        files = hold_in_memory(files, world, stall_s=stall_s)
    elif settings.mmap_warmup:
        warm_up([data_file_path(path) for path in paths], world, stall_s=stall_s)
    return dict(zip(plan.files, files, strict=True)), lease


def _open(
    files: Mapping[str, MMapIndexedDataset],
    store: IndexStore,
    plan: DataPlan,
    *,
    seq_length: int,
    vocab_size: int | None,
    pad_id: int,
) -> tuple[dict[str, Samples], str]:
    """This rank's own view of data and maps, and a text that is equal on all ranks."""
    splits: dict[str, Samples] = {}
    for name, split in plan.splits.items():
        members = [
            SampleDataset(
                files[source.path],
                store.open(source.recipe),
                seq_length=seq_length,
                name=name,
                vocab_size=vocab_size,
                pad_id=pad_id,
                labels=None if source.label_path is None else files[source.label_path],
            )
            for source in split.sources
        ]
        splits[name] = _joined(store, split, members, plan.facts.splits[name].wanted)
    digests = [stored.digest for split in splits.values() for stored in split.stored]
    return splits, ",".join([*splits, *digests])


def _open_file(
    settings: DataSettings, path: str, documents: int, nbytes: int
) -> MMapIndexedDataset:
    data = open_source(settings, path)
    if (len(data), data.tokens.nbytes) != (documents, nbytes):
        raise DataError(
            f"{data.prefix}: has {len(data):,} documents in {data.tokens.nbytes:,} bytes here, the builder "
            f"of the index maps found {documents:,} in {nbytes:,}: the files changed "
            "meanwhile, or differ between the nodes"
        )
    return data


def _joined(
    store: IndexStore, split: SplitPlan, members: Sequence[SampleDataset], samples: int
) -> Samples:
    if split.blend is None:
        return members[0]
    maps = store.open_blend(split.blend)
    return BlendedDataset(
        members,
        maps,
        units=split.blend.units,
        samples=samples,
        start=split.leg.start,
        before=[source.before for source in split.sources],
    )


def describe_difference(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> Sequence[str]:
    """``field: stored → ours`` for each fact of two orders (see ``DataSplits.order_facts``) that differs."""
    names = dict.fromkeys([*stored, *ours])
    return [
        f"{name}: {stored.get(name)} → {ours.get(name)}"
        for name in names
        if stored.get(name) != ours.get(name)
    ]
