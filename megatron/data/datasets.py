"""From token files to three datasets whose i-th sample is the same on every rank.

One rank per file system looks at the data and builds what is missing; all map the result. See
:mod:`megatron.runtime.fs_barrier` for who waits for whom, :mod:`megatron.data.index_maps` for the
order of samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.data.facts import DataFacts, SplitFacts
from megatron.data.index_store import IndexStore
from megatron.data.indexed_dataset import MMapIndexedDataset
from megatron.data.local_cache import Lease
from megatron.data.opening import open_files, open_splits
from megatron.data.plan import plan_indexes
from megatron.data.progress import Progress
from megatron.data.recipes import BlendRecipe
from megatron.data.request import DataRequest
from megatron.data.same_data import check_same_data
from megatron.data.sample_dataset import SampleDataset, Samples
from megatron.data.shares import blend_lines
from megatron.data.sources import open_source, store_of
from megatron.data.split_plan import DataPlan, SplitPlan
from megatron.logging import get_logger
from megatron.runtime.fs_barrier import Task, build_or_wait, open_alike
from megatron.runtime.fs_probe import probe_file_systems
from megatron.runtime.world import World

__all__ = [
    "DataFacts",
    "DataRequest",
    "DataSplits",
    "SampleDataset",
    "Samples",
    "SplitFacts",
    "build_datasets",
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


def build_datasets(request: DataRequest, world: World) -> DataSplits:
    """Open the data, have its index maps built where they are missing, and map them. All ranks call.

    Raises:
        DataError, BarrierError: the data is missing, damaged or too little; see the message.
    """
    settings = request.settings
    store = store_of(settings)
    probe_file_systems(
        store.root,
        world,
        use_shared_fs=settings.use_shared_fs,
        make_parents=settings.index_cache_dir is not None,
    )
    plan = build_or_wait(
        index_task(request, store),
        world,
        use_shared_fs=settings.use_shared_fs,
        timeout_s=settings.index_build_timeout_s,
    )
    if not settings.use_shared_fs:
        check_same_data(plan, world)
    files, lease = open_files(settings, plan, world)
    splits = open_alike(
        world,
        lambda: open_splits(request, store, plan, files),
        f"index maps in {store.root}",
    )
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


def index_task(request: DataRequest, store: IndexStore) -> Task[DataPlan]:
    """What is to be had in the store, for :func:`~megatron.runtime.fs_barrier.build_or_wait`."""

    def missing(plan: DataPlan) -> list[str]:
        return [key for key in plan.recipes() if not store.is_whole(store.root / key)]

    def build(plan: DataPlan, key: str, folder: Path) -> None:
        recipe = plan.recipes()[key]
        if isinstance(recipe, BlendRecipe):
            store.build_blend(recipe, folder)
        else:
            store.build(recipe, open_source(request.settings, plan.path_of(key)), folder)

    return Task(
        root=store.root,
        prepare=lambda: plan_indexes(request, store),
        missing=missing,
        build=build,
        is_whole=store.is_whole,
        advice="set index_cache_dir to a folder that can be written and has space",
    )
