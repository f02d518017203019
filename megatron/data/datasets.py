"""From token files and a split to three datasets whose i-th sample is the same on every rank.

One rank per file system looks at the data and builds what is missing; all map the result. See
:mod:`megatron.runtime.fs_barrier` for who waits for whom, :mod:`megatron.data.index_maps` for the
order of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from megatron.data.index_maps import Order, epochs_needed, samples_in
from megatron.data.index_store import DEFAULT_FOLDER, IndexMaps, IndexRecipe, IndexStore
from megatron.data.indexed_dataset import MMapIndexedDataset, data_file_path, make_dataset
from megatron.data.splits import SPLIT_NAMES, SampleCounts, split_boundaries
from megatron.data.vocabulary import check_token_ids
from megatron.data.warmup import warm_up
from megatron.errors import DataError
from megatron.logging import get_logger
from megatron.runtime.fs_barrier import Task, build_or_wait, open_alike
from megatron.runtime.fs_probe import probe_file_systems
from megatron.runtime.world import World

log = get_logger(__name__)

# Ids of this many tokens at the start of the file are checked before the run starts; the loader
# checks all that it reads.
_TOKENS_LOOKED_AT = 1_000_000


class DataSettings(Protocol):
    """The keys of the configuration's data section that matter here."""

    @property
    def data_path(self) -> str | None: ...
    @property
    def split(self) -> str: ...
    @property
    def data_impl(self) -> str: ...
    @property
    def pack_impl(self) -> str: ...
    @property
    def data_order(self) -> Order: ...
    @property
    def mmap_warmup(self) -> bool: ...
    @property
    def use_shared_fs(self) -> bool: ...
    @property
    def index_cache_dir(self) -> str | None: ...
    @property
    def index_build_timeout_s(self) -> float: ...


@dataclass(frozen=True)
class SplitFacts:
    """What one split holds and what the run takes from it.

    Attributes:
        documents, tokens, bytes: of one epoch.
        samples_per_epoch: whole samples in one epoch.
        epochs: how often the run needs each document, rounded up.
        samples: what these epochs give.
        wanted: what the run takes.
    """

    documents: int
    tokens: int
    bytes: int
    samples_per_epoch: int
    epochs: int
    samples: int
    wanted: int


@dataclass(frozen=True)
class DataFacts:
    """What is known about the data before the first step.

    Attributes:
        documents, tokens: of the whole file.
        splits: by name; a split that is empty or not used is not in it.
        warnings: lines that the user has been told.
    """

    documents: int
    tokens: int
    splits: Mapping[str, SplitFacts]
    warnings: tuple[str, ...] = ()


class SampleDataset:
    """The samples of one split in the order in which the run takes them.

    Sample i is ``[seq_length + 1]`` int64. Can be pickled: what is sent is where the files are.
    """

    def __init__(
        self,
        data: MMapIndexedDataset,
        maps: IndexMaps,
        *,
        seq_length: int,
        name: str,
        vocab_size: int | None = None,
    ) -> None:
        self.name = name
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.data = data
        self.maps = maps
        self._itemsize = data.dtype.itemsize

    def __len__(self) -> int:
        return len(self.maps.shuffle_idx)

    def __getitem__(self, index: int | np.integer[Any]) -> npt.NDArray[np.int64]:
        sample = np.empty(self.seq_length + 1, np.int64)
        self.read_into(index, sample)
        return sample

    def read_into(self, index: int | np.integer[Any], out: npt.NDArray[np.int64]) -> None:
        """Write sample ``index`` into ``out``, ``[seq_length + 1]``.

        Raises:
            IndexError: there is no such sample.
        """
        for at, first, count in self.pieces(index):
            out[at : at + count] = self.data.tokens[first : first + count]

    def check_ids(self, index: int) -> None:
        """Raise the :class:`DataError` of the first id in sample ``index`` that is beyond the vocabulary."""
        if self.vocab_size is not None:
            for _, first, count in self.pieces(index):
                found = self.data.tokens[first : first + count]
                check_token_ids(self.data, first, found, self.vocab_size)

    def pieces(self, index: int | np.integer[Any]) -> list[tuple[int, int, int]]:
        """Where sample ``index`` comes from: (place in the sample, first token of the file, tokens).

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {int(index)} of the {self.name} split, which has {len(self)}")
        maps, sizes, pointers = self.maps, self.data.sizes, self.data.pointers
        position, offset = maps.sample_idx[int(maps.shuffle_idx[index])].tolist()
        found, at, length = [], 0, self.seq_length + 1
        while at < length:
            document = int(maps.doc_idx[position])
            count = min(int(sizes[document]) - offset, length - at)
            if count:
                found.append((at, int(pointers[document]) // self._itemsize + offset, count))
                at += count
            position, offset = position + 1, 0
        return found


@dataclass(frozen=True)
class DataSplits:
    """The datasets of a run.

    Attributes:
        train, valid, test: None where the run takes nothing from it or it is empty.
        index_keys: by split: equal keys mean the same samples in the same order. For checkpoints.
        order_facts: by split: what the key is made of, for a message about what differs.
        facts: numbers for people.
    """

    train: SampleDataset | None
    valid: SampleDataset | None
    test: SampleDataset | None
    index_keys: Mapping[str, str]
    order_facts: Mapping[str, Mapping[str, Any]]
    facts: DataFacts


@dataclass(frozen=True)
class DataPlan:
    """What the builder found in the data: the index maps to have, and the facts."""

    bin_bytes: int
    recipes: Mapping[str, IndexRecipe]
    facts: DataFacts


def store_of(settings: DataSettings) -> IndexStore:
    """Where the index maps of these settings are: ``index_cache_dir``, else beside the data.

    Raises:
        DataError: no data is named.
    """
    if not settings.data_path:
        raise DataError(
            "data_path is not set: name the token files to train on, without .bin or .idx",
            everywhere=True,
        )
    default = Path(settings.data_path).parent / DEFAULT_FOLDER
    return IndexStore(Path(settings.index_cache_dir) if settings.index_cache_dir else default)


def build_datasets(
    settings: DataSettings,
    *,
    seq_length: int,
    seed: int,
    wanted: SampleCounts,
    world: World,
    vocab_size: int | None = None,
    data_parallel_size: int | None = None,
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
    ranks = data_parallel_size or world.size

    def prepare() -> DataPlan:
        return plan_indexes(
            settings,
            store,
            seq_length=seq_length,
            seed=seed,
            wanted=wanted,
            vocab_size=vocab_size,
            data_parallel_size=ranks,
        )

    task = index_task(settings, store, prepare)
    plan = build_or_wait(
        task,
        world,
        use_shared_fs=settings.use_shared_fs,
        timeout_s=settings.index_build_timeout_s,
    )
    if world.is_first:
        for line in plan.facts.warnings:
            log.warning("%s", line)
    data, maps = open_alike(
        world, lambda: _open(settings, store, plan), f"index maps in {store.root}"
    )
    if settings.mmap_warmup:
        warm_up(data_file_path(data.prefix), world)
    splits = {
        name: SampleDataset(data, opened, seq_length=seq_length, name=name, vocab_size=vocab_size)
        for name, opened in maps.items()
    }
    return DataSplits(
        train=splits.get("train"),
        valid=splits.get("valid"),
        test=splits.get("test"),
        index_keys={name: recipe.order_key for name, recipe in plan.recipes.items()},
        order_facts={name: recipe.order_facts() for name, recipe in plan.recipes.items()},
        facts=plan.facts,
    )


def index_task(
    settings: DataSettings, store: IndexStore, prepare: Callable[[], DataPlan]
) -> Task[DataPlan]:
    """What is to be had in the store, for :func:`~megatron.runtime.fs_barrier.build_or_wait`."""

    def missing(plan: DataPlan) -> list[str]:
        keys = dict.fromkeys(recipe.key for recipe in plan.recipes.values())
        return [key for key in keys if not store.is_whole(store.root / key)]

    def build(plan: DataPlan, key: str, folder: Path) -> None:
        recipe = next(recipe for recipe in plan.recipes.values() if recipe.key == key)
        store.build(recipe, make_dataset(_prefix(settings), settings.data_impl), folder)

    return Task(
        root=store.root,
        prepare=prepare,
        missing=missing,
        build=build,
        is_whole=store.is_whole,
        advice="set index_cache_dir to a folder that can be written and has space",
    )


def plan_indexes(
    settings: DataSettings,
    store: IndexStore,
    *,
    seq_length: int,
    seed: int,
    wanted: SampleCounts,
    vocab_size: int | None = None,
    data_parallel_size: int = 1,
) -> DataPlan:
    """Look at the data and say which index maps the run needs; reads headers, where it has been here
    before.

    Raises:
        DataError: the data is missing, damaged or too little to train on, or does not fit the
            vocabulary.
    """
    data = make_dataset(_prefix(settings), settings.data_impl)
    fingerprint = store.fingerprint(data)
    if vocab_size is not None:
        check_token_ids(data, 0, data.tokens[:_TOKENS_LOOKED_AT], vocab_size)
    boundaries = split_boundaries(settings.split, len(data))
    recipes: dict[str, IndexRecipe] = {}
    splits: dict[str, SplitFacts] = {}
    warnings: list[str] = []
    for number, (name, samples) in enumerate(zip(SPLIT_NAMES, wanted, strict=True)):
        if samples == 0:
            continue
        first, stop = boundaries[number : number + 2]
        tokens = data.tokens_between(first, stop)
        per_epoch = samples_in(tokens, seq_length, 1)
        where = (
            f"{data.prefix}: the {name} split has {stop - first:,} of {len(data):,} documents (split: "
            f"{settings.split}), {tokens:,} tokens"
        )
        if name == "train" and per_epoch < data_parallel_size:
            raise DataError(
                f"{where}: {per_epoch} whole samples of seq_length {seq_length}, with "
                f"{data_parallel_size} data-parallel ranks that need one each\n"
                "  to do: use more text, a larger share for training, a smaller seq_length or fewer ranks"
            )
        if tokens == 0 or (per_epoch == 0 and settings.data_order == "epochs"):
            warnings.append(f"{where}, not one whole sample: it is not evaluated")
            continue
        if per_epoch < data_parallel_size:
            warnings.append(
                f"{where}, {per_epoch} samples an epoch: evaluation reads them repeatedly"
            )
        recipe = IndexRecipe(
            idx_sha256=fingerprint,
            bin_bytes=data.tokens.nbytes,
            first_document=first,
            stop_document=stop,
            tokens_per_epoch=tokens,
            epochs=epochs_needed(tokens, seq_length, samples, settings.data_order),
            seq_length=seq_length,
            seed=seed,
            order=settings.data_order,
            packing=settings.pack_impl,
        )
        recipes[name] = recipe
        splits[name] = SplitFacts(
            documents=stop - first,
            tokens=tokens,
            bytes=tokens * data.dtype.itemsize,
            samples_per_epoch=per_epoch,
            epochs=recipe.epochs,
            samples=recipe.shape().samples,
            wanted=samples,
        )
    facts = DataFacts(len(data), data.num_tokens, splits, tuple(warnings))
    return DataPlan(data.tokens.nbytes, recipes, facts)


def _prefix(settings: DataSettings) -> str:
    assert settings.data_path  # store_of has looked
    return settings.data_path


def _open(
    settings: DataSettings, store: IndexStore, plan: DataPlan
) -> tuple[tuple[MMapIndexedDataset, dict[str, IndexMaps]], str]:
    """This rank's own view of data and maps, and a text that is equal on all ranks."""
    data = make_dataset(_prefix(settings), settings.data_impl)
    if (len(data), data.tokens.nbytes) != (plan.facts.documents, plan.bin_bytes):
        raise DataError(
            f"{data.prefix}: has {len(data):,} documents in {data.tokens.nbytes:,} bytes here, the builder "
            f"of the index maps found {plan.facts.documents:,} in {plan.bin_bytes:,}: the files changed "
            "meanwhile, or differ between the nodes"
        )
    maps = {name: store.open(recipe) for name, recipe in plan.recipes.items()}
    return (data, maps), ",".join(f"{name}={opened.digest}" for name, opened in maps.items())


def describe_difference(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> Sequence[str]:
    """``field: stored → ours`` for each fact of two orders (see ``DataSplits.order_facts``) that differs."""
    names = dict.fromkeys([*stored, *ours])
    return [
        f"{name}: {stored.get(name)} → {ours.get(name)}"
        for name in names
        if stored.get(name) != ours.get(name)
    ]
