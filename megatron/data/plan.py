"""Which index maps a run needs: a look at the data, without building anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from megatron.data.index_maps import Order, epochs_needed, samples_in
from megatron.data.index_store import DEFAULT_FOLDER, IndexRecipe, IndexStore
from megatron.data.indexed_dataset import MMapIndexedDataset, make_dataset
from megatron.data.splits import SPLIT_NAMES, SampleCounts, split_boundaries
from megatron.data.vocabulary import check_token_ids
from megatron.errors import DataError

# Ids of this many tokens at the start of the file are checked before the run starts; the loader
# checks all that it reads.
_TOKENS_LOOKED_AT: Final = 1_000_000


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


def open_data(settings: DataSettings) -> MMapIndexedDataset:
    """The token files of these settings.

    Raises:
        DataError: they are missing or damaged.
    """
    assert settings.data_path  # store_of has looked
    return make_dataset(settings.data_path, settings.data_impl)


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
    """Look at the data and say which index maps the run needs. Data seen before costs a header's read.

    Raises:
        DataError: the data is missing, damaged or too little to train on, or does not fit the
            vocabulary.
    """
    data = open_data(settings)
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
        warning, usable = _judge(
            f"{data.prefix}: the {name} split has {stop - first:,} of {len(data):,} documents (split: "
            f"{settings.split}), {tokens:,} tokens, with seq_length {seq_length}",
            tokens,
            samples_in(tokens, seq_length, 1),
            needed=data_parallel_size,
            is_train=name == "train",
            order=settings.data_order,
        )
        if warning:
            warnings.append(warning)
        if not usable:
            continue
        recipes[name] = IndexRecipe(
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
        splits[name] = _facts_of(recipes[name], data, samples)
    facts = DataFacts(len(data), data.num_tokens, splits, tuple(warnings))
    return DataPlan(data.tokens.nbytes, recipes, facts)


def _judge(
    where: str, tokens: int, per_epoch: int, *, needed: int, is_train: bool, order: Order
) -> tuple[str | None, bool]:
    """A line to tell the user about a small split, and whether it can be read at all.

    Raises:
        DataError: it is the training split and has not one sample for each of the ``needed`` ranks.
    """
    if per_epoch >= needed:
        return None, True
    if is_train:
        raise DataError(
            f"{where}: {per_epoch} whole samples; the {needed} data-parallel ranks need one each\n"
            "  to do: use more text, a larger share for training, a smaller seq_length or fewer ranks"
        )
    if tokens == 0 or (per_epoch == 0 and order == "epochs"):
        return f"{where}: not one whole sample: it is not evaluated", False
    return f"{where}: {per_epoch} samples an epoch: evaluation reads them repeatedly", True


def _facts_of(recipe: IndexRecipe, data: MMapIndexedDataset, wanted: int) -> SplitFacts:
    tokens = recipe.tokens_per_epoch
    return SplitFacts(
        documents=recipe.stop_document - recipe.first_document,
        tokens=tokens,
        bytes=tokens * data.dtype.itemsize,
        samples_per_epoch=samples_in(tokens, recipe.seq_length, 1),
        epochs=recipe.epochs,
        samples=recipe.shape().samples,
        wanted=wanted,
    )
