"""Which index maps a run needs: a look at the data, without building anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from megatron.data.blend import units_of
from megatron.data.counting import SampleCount, WholeCount
from megatron.data.index_maps import Order
from megatron.data.index_store import BlendRecipe, IndexRecipe, IndexStore, hash_of
from megatron.data.indexed_dataset import MMapIndexedDataset
from megatron.data.sources import (
    DataSettings,
    all_paths,
    check_members,
    count_of,
    documents_of,
    open_source,
    order_of,
    paths_of,
    weights_of,
)
from megatron.data.splits import SPLIT_NAMES, SampleCounts
from megatron.data.vocabulary import check_token_ids
from megatron.errors import DataError

# Ids of this many tokens at the start of the file are checked before the run starts; the loader
# checks all that it reads.
_TOKENS_LOOKED_AT: Final = 1_000_000
# GPT-NeoX gives each member of a blend half a percent more samples than its weight asks for. The
# number of epochs follows from it, and with it the order within the member.
_MARGIN: Final = Fraction("1.005")
# Facts that all members of a blend share; the others are each member's own.
_SHARED_FACTS: Final = ("seq_length", "seed", "order", "packing", "options", "format_version")


@dataclass(frozen=True)
class MemberFacts:
    """One member of a blend.

    Attributes:
        path: its token files.
        weight: its share as asked for; all of them sum to 1.
        samples_per_epoch: whole samples in one epoch.
    """

    path: str
    weight: float
    samples_per_epoch: int


@dataclass(frozen=True)
class SplitFacts:
    """What one split holds and what the run takes from it.

    Attributes:
        documents, tokens, bytes: of one epoch.
        samples_per_epoch: whole samples in one epoch.
        epochs: how often the run needs each document, rounded up.
        samples: what these epochs give.
        wanted: what the run takes.
        members: of a blend; the numbers above are their sums, ``epochs`` the most of any.
    """

    documents: int
    tokens: int
    bytes: int
    samples_per_epoch: int
    epochs: int
    samples: int
    wanted: int
    members: tuple[MemberFacts, ...] = ()


@dataclass(frozen=True)
class DataFacts:
    """What is known about the data before the first step.

    Attributes:
        documents, tokens: of all token files, whole.
        splits: by name; a split that is empty or not used is not in it.
        warnings: lines that the user has been told.
    """

    documents: int
    tokens: int
    splits: Mapping[str, SplitFacts]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """One token file's part in a split."""

    path: str
    recipe: IndexRecipe


@dataclass(frozen=True)
class SplitPlan:
    """What one split is made of: one source, or several and the order of their turns."""

    sources: tuple[Source, ...]
    blend: BlendRecipe | None = None

    def recipes(self) -> dict[str, IndexRecipe | BlendRecipe]:
        """Everything to have in the store, by key."""
        found: dict[str, IndexRecipe | BlendRecipe] = {
            source.recipe.key: source.recipe for source in self.sources
        }
        if self.blend is not None:
            found[self.blend.key] = self.blend
        return found

    @property
    def order_key(self) -> str:
        """Equal for two runs that read the same samples in the same order, as far as both go."""
        return hash_of(self.order_facts())

    def order_facts(self) -> dict[str, Any]:
        """What :attr:`order_key` is made of: of a blend, the facts of all members and their weights."""
        first = self.sources[0].recipe.order_facts()
        if self.blend is None:
            return first
        facts = {"datasets": len(self.sources)} | {name: first[name] for name in _SHARED_FACTS}
        for number, source in enumerate(self.sources, start=1):
            facts[f"dataset {number} weight"] = self.blend.units[number - 1]
            facts |= {
                f"dataset {number} {name}": value
                for name, value in source.recipe.order_facts().items()
                if name not in _SHARED_FACTS
            }
        return facts


@dataclass(frozen=True)
class DataPlan:
    """What the builder found in the data.

    Attributes:
        files: (documents, bytes) of each token file.
        splits: what is to be read of them; a split that is empty or not used is not in it.
        facts: numbers for people.
    """

    files: Mapping[str, tuple[int, int]]
    splits: Mapping[str, SplitPlan]
    facts: DataFacts

    def recipes(self) -> dict[str, IndexRecipe | BlendRecipe]:
        """Everything to have in the store, by key."""
        return {
            key: recipe for split in self.splits.values() for key, recipe in split.recipes().items()
        }

    def path_of(self, key: str) -> str:
        """The token files that the index maps ``key`` are made from."""
        return next(
            source.path
            for split in self.splits.values()
            for source in split.sources
            if source.recipe.key == key
        )


@dataclass(frozen=True)
class _Opened:
    """A token file and the hash of its index."""

    data: MMapIndexedDataset
    fingerprint: str


@dataclass(frozen=True)
class _Part:
    """The documents of a token file that belong to a split, and their tokens."""

    path: str
    file: _Opened
    first: int
    stop: int
    tokens: int
    count: SampleCount

    @property
    def documents(self) -> int:
        return self.stop - self.first


def plan_indexes(
    settings: DataSettings,
    store: IndexStore,
    *,
    seq_length: int,
    seed: int,
    wanted: SampleCounts,
    vocab_size: int | None = None,
    data_parallel_size: int = 1,
    train_epochs: float | None = None,
) -> DataPlan:
    """Look at the data and say which index maps the run needs. Data seen before costs a header's read.

    Raises:
        DataError: the data is missing, damaged or too little to train on, or does not fit the
            vocabulary.
    """
    files: dict[str, _Opened] = {}
    for path in all_paths(settings):
        data = open_source(settings, path)
        files[path] = _Opened(data, store.fingerprint(data))
        if vocab_size is not None:
            check_token_ids(data, 0, data.tokens[:_TOKENS_LOOKED_AT], vocab_size)
    splits: dict[str, SplitPlan] = {}
    facts: dict[str, SplitFacts] = {}
    warnings: list[str] = []
    for name, samples in zip(SPLIT_NAMES, wanted, strict=True):
        if samples == 0:
            continue
        if not paths_of(settings, name):
            warnings.append(f"{name}_data_paths is not set: there is no {name} split")
            continue
        parts = _parts_of(settings, store, name, files, seq_length, seed)
        warning, usable = _judge(
            _where(settings, name, parts, seq_length),
            sum(part.tokens for part in parts),
            sum(part.count.per_epoch for part in parts),
            needed=data_parallel_size,
            is_train=name == "train",
            order=order_of(settings),
        )
        if warning:
            warnings.append(warning)
        if usable:
            epochs = train_epochs if name == "train" else None
            plan = _plan_split(settings, name, parts, samples, seq_length, seed, epochs)
            splits[name], facts[name] = plan, _facts_of(plan, parts, samples)
    if settings.weight_by_num_documents:
        warnings += [
            f"weight_by_num_documents: {name}_data_weights is not used"
            for name in SPLIT_NAMES
            if getattr(settings, f"{name}_data_weights")
        ]
    whole = [file.data for file in files.values()]
    total = DataFacts(
        documents=sum(map(len, whole)),
        tokens=sum(data.num_tokens for data in whole),
        splits=facts,
        warnings=tuple(warnings),
    )
    sizes = {path: (len(file.data), file.data.tokens.nbytes) for path, file in files.items()}
    return DataPlan(sizes, splits, total)


def _parts_of(
    settings: DataSettings,
    store: IndexStore,
    split: str,
    files: Mapping[str, _Opened],
    seq_length: int,
    seed: int,
) -> tuple[_Part, ...]:
    parts = []
    for path in paths_of(settings, split):
        data = files[path].data
        first, stop = documents_of(settings, split, data)
        count = count_of(settings, store, data, first, stop, seq_length=seq_length, seed=seed)
        tokens = data.tokens_between(first, stop)
        parts.append(_Part(path, files[path], first, stop, tokens, count))
    return tuple(parts)


def _plan_split(
    settings: DataSettings,
    split: str,
    parts: Sequence[_Part],
    samples: int,
    seq_length: int,
    seed: int,
    train_epochs: float | None,
) -> SplitPlan:
    """The recipes for ``samples`` samples of one split.

    Raises:
        DataError: a member of a blend has nothing to give.
    """
    blend, shares = None, [samples]
    if len(parts) > 1:
        counts = [part.count for part in parts]
        per_epoch = [count.per_epoch for count in counts]
        check_members(split, [part.path for part in parts], per_epoch, seq_length)
        weights = weights_of(
            settings,
            split,
            documents=[part.documents for part in parts],
            counts=counts,
            train_epochs=train_epochs,
        )
        units = units_of(weights)
        blend = BlendRecipe(units, min(sum(units), samples))
        # With train_epochs the samples are counted to end with an epoch: a margin would begin another.
        margin = _MARGIN if train_epochs is None else Fraction(1)
        shares = [math.ceil(samples * margin * Fraction(unit, sum(units))) for unit in units]
    sources = []
    for part, share in zip(parts, shares, strict=True):
        epochs, options = part.count.epochs_for(share), {}
        if isinstance(part.count, WholeCount):
            options = {
                "allow_chopped": settings.allow_chopped,
                "epoch_samples": part.count.counts(epochs),
            }
        recipe = IndexRecipe(
            idx_sha256=part.file.fingerprint,
            bin_bytes=part.file.data.tokens.nbytes,
            first_document=part.first,
            stop_document=part.stop,
            tokens_per_epoch=part.tokens,
            epochs=epochs,
            seq_length=seq_length,
            seed=seed,
            order=order_of(settings),
            packing=settings.pack_impl,
            options=options,
        )
        sources.append(Source(part.path, recipe))
    return SplitPlan(tuple(sources), blend)


def _where(settings: DataSettings, split: str, parts: Sequence[_Part], seq_length: int) -> str:
    """A split and its size, for messages."""
    documents, tokens = sum(p.documents for p in parts), sum(p.tokens for p in parts)
    size = f"{tokens:,} tokens, with seq_length {seq_length}"
    if settings.pack_impl != "packed":
        size += f", pack_impl {settings.pack_impl}"
        size += "" if settings.allow_chopped else " and without the longer ones (allow_chopped)"
    if settings.data_path:
        data = parts[0].file.data
        return (
            f"{data.prefix}: the {split} split has {documents:,} of {len(data):,} documents (split: "
            f"{settings.split}), {size}"
        )
    what = parts[0].path if len(parts) == 1 else f"{len(parts):,} datasets"
    return f"{split}_data_paths: {what}: {documents:,} documents, {size}"


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


def _facts_of(plan: SplitPlan, parts: Sequence[_Part], wanted: int) -> SplitFacts:
    recipes = [source.recipe for source in plan.sources]
    per_epoch = [part.count.per_epoch for part in parts]
    members: tuple[MemberFacts, ...] = ()
    if plan.blend is not None:
        members = tuple(
            MemberFacts(source.path, unit / sum(plan.blend.units), count)
            for source, unit, count in zip(plan.sources, plan.blend.units, per_epoch, strict=True)
        )
    return SplitFacts(
        documents=sum(r.stop_document - r.first_document for r in recipes),
        tokens=sum(r.tokens_per_epoch for r in recipes),
        bytes=sum(part.tokens * part.file.data.dtype.itemsize for part in parts),
        samples_per_epoch=sum(per_epoch),
        epochs=max(r.epochs for r in recipes),
        samples=recipes[0].samples if plan.blend is None else wanted,
        wanted=wanted,
        members=members,
    )
