"""Which index maps a run needs: a look at the data, without building anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from megatron.data.blend import units_of
from megatron.data.counting import SampleCount, WholeCount
from megatron.data.index_maps import Order
from megatron.data.index_store import BlendRecipe, IndexRecipe, IndexStore, hash_of
from megatron.data.indexed_dataset import MMapIndexedDataset
from megatron.data.labels import check_labels_fit
from megatron.data.progress import Leg, Progress
from megatron.data.sources import (
    DataSettings,
    all_paths,
    check_members,
    count_of,
    documents_of,
    label_paths_of,
    open_source,
    order_of,
    paths_of,
    weights_of,
)
from megatron.data.splits import SPLIT_NAMES, SampleCounts, is_left_out
from megatron.data.vocabulary import check_token_ids
from megatron.errors import DataError

# Ids of this many tokens at the start of the file are checked before the run starts; the loader
# checks all that it reads.
_TOKENS_LOOKED_AT: Final = 1_000_000
# GPT-NeoX gives each member of a blend half a percent more samples than its weight asks for. The
# number of epochs follows from it, and with it the order within the member.
_MARGIN: Final = Fraction("1.005")
# Facts that all members of a blend share; the others are each member's own.
SHARED_FACTS: Final = ("seq_length", "seed", "order", "packing", "options", "format_version")


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
    """One token file's part in a split, and its label file if it has one.

    Attributes:
        path, label_path: the files, without .bin or .idx.
        recipe: its index maps.
        content: hash of pieces of its ``.bin`` files.
        before: samples that it gave before this leg of the run.
    """

    path: str
    recipe: IndexRecipe
    content: str
    label_path: str | None = None
    before: int = 0

    @cached_property
    def key(self) -> str:
        """Equal for the same samples in the same order, wherever the files are."""
        return hash_of(self.order_facts())

    def order_facts(self) -> dict[str, Any]:
        """What :attr:`key` is made of."""
        return self.recipe.order_facts() | {"content": self.content}


@dataclass(frozen=True)
class SplitPlan:
    """What one split is made of: one source, or several and the order of their turns.

    Attributes:
        sources: the datasets.
        blend: their turns; None where the samples are those of one dataset from its start.
        leg: where the turns begin; see :mod:`megatron.data.progress`.
    """

    sources: tuple[Source, ...]
    blend: BlendRecipe | None = None
    leg: Leg = field(default_factory=Leg)

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
        first = self.sources[0].order_facts()
        if self.blend is None or len(self.sources) == 1:
            return first
        facts = {"datasets": len(self.sources)} | {name: first[name] for name in SHARED_FACTS}
        for number, source in enumerate(self.sources, start=1):
            facts[f"dataset {number} weight"] = self.blend.units[number - 1]
            facts |= {
                f"dataset {number} {name}": value
                for name, value in source.order_facts().items()
                if name not in SHARED_FACTS
            }
        return facts


@dataclass(frozen=True)
class DataPlan:
    """What the builder found in the data.

    Attributes:
        files: (documents, bytes) of each token and label file.
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
    """A token or label file, the hash of its index, and one of pieces of its tokens."""

    data: MMapIndexedDataset
    fingerprint: str
    content: str


@dataclass(frozen=True)
class _Part:
    """The documents of a token file that belong to a split, and their tokens."""

    path: str
    file: _Opened
    first: int
    stop: int
    tokens: int
    count: SampleCount
    label_path: str | None
    labels: _Opened | None

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
    progress: Progress | None = None,
) -> DataPlan:
    """Look at the data and say which index maps the run needs. Data seen before costs a header's read.

    With ``progress``, of a run that is resumed, its leg goes on where the training blend is the same, and
    another begins where it is not.

    Raises:
        DataError: the data is missing, damaged or too little to train on, or does not fit the
            vocabulary.
    """
    files = {path: _look_at(settings, store, path, vocab_size) for path in all_paths(settings)}
    labels = {
        path: _look_at(settings, store, path, vocab_size, are_labels=True)
        for name in SPLIT_NAMES
        for path in label_paths_of(settings, name)
        if path is not None
    }
    splits: dict[str, SplitPlan] = {}
    facts: dict[str, SplitFacts] = {}
    warnings: list[str] = []
    for name, samples in zip(SPLIT_NAMES, wanted, strict=True):
        if samples == 0:
            continue
        if not paths_of(settings, name):
            warnings.append(f"{name}_data_paths is not set: there is no {name} split")
            continue
        if settings.data_path and is_left_out(settings.split, name):
            continue
        parts = _parts_of(settings, store, name, files, labels, seq_length, seed)
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
            draft = _Draft(settings, name, parts, samples, seq_length, seed)
            if name == "train":
                plan = _continued(replace(draft, train_epochs=train_epochs), progress)
            else:
                plan = draft.plan(Leg())
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
    sizes = {
        path: (len(file.data), file.data.tokens.nbytes) for path, file in (files | labels).items()
    }
    return DataPlan(sizes, splits, total)


def _look_at(
    settings: DataSettings,
    store: IndexStore,
    path: str,
    vocab_size: int | None,
    *,
    are_labels: bool = False,
) -> _Opened:
    data = open_source(settings, path)
    if vocab_size is not None:
        tokens = data.tokens[:_TOKENS_LOOKED_AT]
        check_token_ids(data, 0, tokens, vocab_size, are_labels=are_labels)
    return _Opened(data, store.fingerprint(data), store.content(data))


def _parts_of(
    settings: DataSettings,
    store: IndexStore,
    split: str,
    files: Mapping[str, _Opened],
    labels: Mapping[str, _Opened],
    seq_length: int,
    seed: int,
) -> tuple[_Part, ...]:
    """The datasets of a split.

    Raises:
        DataError: a label file does not fit its text.
    """
    parts = []
    for path, label_path in zip(
        paths_of(settings, split), label_paths_of(settings, split), strict=True
    ):
        beside = None if label_path is None else labels[label_path]
        if beside is not None and beside.fingerprint != files[path].fingerprint:
            check_labels_fit(files[path].data, beside.data)
        data = files[path].data
        first, stop = documents_of(settings, split, data)
        count = count_of(settings, store, data, first, stop, seq_length=seq_length, seed=seed)
        tokens = data.tokens_between(first, stop)
        parts.append(_Part(path, files[path], first, stop, tokens, count, label_path, beside))
    return tuple(parts)


def _check_members_differ(sources: Sequence[Source]) -> None:
    """Refuse copies in a blend that may change: their positions could not be told apart.

    Raises:
        DataError: two members hold the same.
    """
    if sources[0].recipe.order != "epochs":
        return
    first_with: dict[str, str] = {}
    for source in sources:
        other = first_with.setdefault(source.key, source.path)
        if other != source.path:
            raise DataError(
                f"{source.path}: holds the same as {other}: name one of them, with the weight of both"
            )


@dataclass(frozen=True)
class _Draft:
    """What the recipes of ``samples`` samples of one split follow from."""

    settings: DataSettings
    split: str
    parts: Sequence[_Part]
    samples: int
    seq_length: int
    seed: int
    train_epochs: float | None = None

    def plan(self, leg: Leg) -> SplitPlan:
        """The recipes for the samples from ``leg.start`` on.

        Raises:
            DataError: a member of a blend has nothing to give.
        """
        parts, samples = self.parts, max(0, self.samples - leg.start)
        sources = [self._source(part, leg) for part in parts]
        _check_members_differ(sources)
        blend, shares = None, [samples]
        if len(parts) > 1:
            units = units_of(self._weights([source.before for source in sources]))
            blend = BlendRecipe(units, min(sum(units), samples))
            # With train_epochs the samples are counted to end with an epoch: a margin would begin another.
            margin = _MARGIN if self.train_epochs is None else Fraction(1)
            shares = [math.ceil(samples * margin * Fraction(unit, sum(units))) for unit in units]
        elif leg.start:
            blend = BlendRecipe((1,), 1)
        complete = tuple(
            self._with_epochs(source, part.count, source.before + share)
            for source, part, share in zip(sources, parts, shares, strict=True)
        )
        return SplitPlan(complete, blend, leg)

    def _weights(self, before: Sequence[int]) -> tuple[float, ...]:
        paths, counts = [part.path for part in self.parts], [part.count for part in self.parts]
        tokens, per_epoch = [part.tokens for part in self.parts], [c.per_epoch for c in counts]
        check_members(self.split, paths, tokens, per_epoch, self.seq_length)
        return weights_of(
            self.settings,
            self.split,
            documents=[part.documents for part in self.parts],
            counts=counts,
            before=before,
            train_epochs=self.train_epochs,
        )

    def _source(self, part: _Part, leg: Leg) -> Source:
        """One dataset, its epochs still open."""
        is_whole, labels = isinstance(part.count, WholeCount), part.labels
        recipe = IndexRecipe(
            idx_sha256=part.file.fingerprint,
            bin_bytes=part.file.data.tokens.nbytes,
            first_document=part.first,
            stop_document=part.stop,
            tokens_per_epoch=part.tokens,
            epochs=1,
            seq_length=self.seq_length,
            seed=self.seed,
            order=order_of(self.settings),
            packing=self.settings.pack_impl,
            options={"allow_chopped": self.settings.allow_chopped} if is_whole else {},
            companions={} if labels is None else {"label": _facts_of_labels(labels)},
        )
        content = part.file.content + ("" if labels is None else f", labels {labels.content}")
        source = Source(part.path, recipe, content, part.label_path)
        return replace(source, before=leg.before.get(source.key, 0))

    @staticmethod
    def _with_epochs(source: Source, count: SampleCount, samples: int) -> Source:
        epochs, recipe = count.epochs_for(samples), source.recipe
        options = dict(recipe.options)
        if isinstance(count, WholeCount):
            options["epoch_samples"] = count.counts(epochs)
        return replace(source, recipe=replace(recipe, epochs=epochs, options=options))


def _continued(draft: _Draft, progress: Progress | None) -> SplitPlan:
    """The plan of the training split, in the leg that a checkpoint stands in or the next one."""
    if progress is None or order_of(draft.settings) != "epochs":
        return draft.plan(Leg())
    same = draft.plan(progress.leg)
    return same if same.order_key == progress.order_key else draft.plan(progress.next_leg())


def _facts_of_labels(labels: _Opened) -> str:
    return f"{labels.fingerprint}, {labels.data.tokens.nbytes} bytes"


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
