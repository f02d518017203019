"""Which token files each split is made of, where their index is, and how much each one counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from megatron.data.blend import document_weights
from megatron.data.counting import PackedCount, SampleCount, WholeCount
from megatron.data.index_maps import Order
from megatron.data.index_store import DEFAULT_FOLDER, IndexStore
from megatron.data.indexed_dataset import MMapIndexedDataset, make_dataset
from megatron.data.splits import SPLIT_NAMES, split_boundaries
from megatron.data.whole_documents import WholeDocuments
from megatron.errors import DataError
from megatron.neox_arguments.sections.data import PackImpl


class DataSettings(Protocol):
    """The keys of the configuration's data section that matter here."""

    @property
    def data_path(self) -> str | None: ...
    @property
    def split(self) -> str: ...
    @property
    def train_data_paths(self) -> Sequence[str] | None: ...
    @property
    def valid_data_paths(self) -> Sequence[str] | None: ...
    @property
    def test_data_paths(self) -> Sequence[str] | None: ...
    @property
    def train_label_data_paths(self) -> Sequence[str] | None: ...
    @property
    def valid_label_data_paths(self) -> Sequence[str] | None: ...
    @property
    def test_label_data_paths(self) -> Sequence[str] | None: ...
    @property
    def train_data_weights(self) -> Sequence[float] | None: ...
    @property
    def valid_data_weights(self) -> Sequence[float] | None: ...
    @property
    def test_data_weights(self) -> Sequence[float] | None: ...
    @property
    def weight_by_num_documents(self) -> bool: ...
    @property
    def weighted_sampler_alpha(self) -> float: ...
    @property
    def data_impl(self) -> str: ...
    @property
    def pack_impl(self) -> PackImpl: ...
    @property
    def allow_chopped(self) -> bool: ...
    @property
    def data_order(self) -> Order: ...
    @property
    def mmap_warmup(self) -> bool: ...
    @property
    def data_local_cache_dir(self) -> str | None: ...
    @property
    def data_local_cache_limit_gb(self) -> float | None: ...
    @property
    def use_shared_fs(self) -> bool: ...
    @property
    def index_cache_dir(self) -> str | None: ...
    @property
    def index_build_timeout_s(self) -> float: ...


def paths_of(settings: DataSettings, split: str) -> tuple[str, ...]:
    """The token files of one split, without .bin or .idx; none where the settings name none."""
    if settings.data_path:
        return (settings.data_path,)
    return tuple(getattr(settings, f"{split}_data_paths") or ())


def label_paths_of(settings: DataSettings, split: str) -> tuple[str | None, ...]:
    """The label file of each of :func:`paths_of`; None where there is none."""
    given: Sequence[str] | None = getattr(settings, f"{split}_label_data_paths")
    return tuple(given) if given else (None,) * len(paths_of(settings, split))


def all_paths(settings: DataSettings) -> tuple[str, ...]:
    """Every token file, once."""
    return tuple(dict.fromkeys(path for name in SPLIT_NAMES for path in paths_of(settings, name)))


def store_of(settings: DataSettings) -> IndexStore:
    """Where the index of these settings is: ``index_cache_dir``, else beside the first token file.

    Raises:
        DataError: no data is named.
    """
    paths = all_paths(settings)
    if not paths:
        raise DataError(
            "data_path is not set, nor are train_data_paths: name the token files to train on, without "
            ".bin or .idx",
            everywhere=True,
        )
    default = Path(paths[0]).parent / DEFAULT_FOLDER
    return IndexStore(Path(settings.index_cache_dir) if settings.index_cache_dir else default)


def open_source(settings: DataSettings, path: str) -> MMapIndexedDataset:
    """One of the token files of these settings.

    Raises:
        DataError: it is missing or damaged.
    """
    return make_dataset(path, settings.data_impl)


def documents_of(settings: DataSettings, split: str, data: MMapIndexedDataset) -> tuple[int, int]:
    """The first document of the file that belongs to the split, and the end; all of a file of its own."""
    if not settings.data_path:
        return 0, len(data)
    number = SPLIT_NAMES.index(split)
    first, stop = split_boundaries(settings.split, len(data))[number : number + 2]
    return first, stop


def order_of(settings: DataSettings) -> Order:
    """The order of samples: those of whole documents are always ordered epoch by epoch."""
    return settings.data_order if settings.pack_impl == "packed" else "epochs"


def count_of(
    settings: DataSettings,
    store: IndexStore,
    data: MMapIndexedDataset,
    first: int,
    stop: int,
    *,
    seq_length: int,
    seed: int,
) -> SampleCount:
    """Counts the samples of the documents ``first`` … ``stop - 1`` of a token file."""
    if settings.pack_impl == "packed":
        return PackedCount(data.tokens_between(first, stop), seq_length, settings.data_order)
    documents = WholeDocuments(
        first, stop, seq_length, seed, settings.pack_impl, settings.allow_chopped
    )
    return WholeCount(
        documents, store.fingerprint(data), lambda: data.sizes[first:stop].astype(np.int32), store
    )


def weights_of(
    settings: DataSettings,
    split: str,
    *,
    documents: Sequence[int],
    counts: Sequence[SampleCount],
    before: Sequence[int],
    train_epochs: float | None,
) -> tuple[float, ...]:
    """How much each member of a split counts, in any unit.

    ``*_data_weights``, or after the documents with ``weight_by_num_documents``. Without either all
    count alike, but for a training split that is read for ``train_epochs``: there, as often as each
    has samples in these epochs, so that none is read more often than asked for.

    Args:
        settings: the data section.
        split: name of the split.
        documents: of each member.
        counts: of each member's samples.
        before: samples that each has given already.
        train_epochs: as in the configuration.
    """
    if settings.weight_by_num_documents:
        return document_weights(documents, settings.weighted_sampler_alpha)
    given: Sequence[float] | None = getattr(settings, f"{split}_data_weights")
    if given:
        return tuple(given)
    if split == "train" and train_epochs is not None:
        return tuple(
            max(1, count.in_epochs(train_epochs) - given)
            for count, given in zip(counts, before, strict=True)
        )
    return (1.0,) * len(documents)


def check_members(
    split: str,
    paths: Sequence[str],
    tokens: Sequence[int],
    samples: Sequence[int],
    seq_length: int,
) -> None:
    """Refuse a member of a blend that has nothing to give.

    Raises:
        DataError: one has not one whole sample an epoch.
    """
    for path, size, count in zip(paths, tokens, samples, strict=True):
        if count == 0:
            raise DataError(
                f"{path}: {size:,} tokens are not one whole sample with seq_length {seq_length}: it has "
                f"nothing to give to the {split} blend\n"
                f"  to do: take it out of {split}_data_paths, or merge it with another"
            )
