"""From the files of a split to the recipes of its index maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from megatron.data.blend import units_of
from megatron.data.counting import SampleCount, WholeCount
from megatron.data.indexed_dataset import MMapIndexedDataset
from megatron.data.progress import Leg
from megatron.data.recipes import BlendRecipe, IndexRecipe
from megatron.data.request import DataRequest
from megatron.data.sources import check_members, order_of, weights_of
from megatron.data.split_plan import Source, SplitPlan
from megatron.errors import DataError

# GPT-NeoX gives each member of a blend half a percent more samples than its weight asks for. The
# number of epochs follows from it, and with it the order within the member.
_MARGIN: Final = Fraction("1.005")


@dataclass(frozen=True)
class Opened:
    """A token or label file, the hash of its index, and one of pieces of its tokens."""

    data: MMapIndexedDataset
    fingerprint: str
    content: str


@dataclass(frozen=True)
class Part:
    """The documents of a token file that belong to a split, and their tokens."""

    path: str
    file: Opened
    first: int
    stop: int
    tokens: int
    count: SampleCount
    label_path: str | None
    labels: Opened | None

    @property
    def documents(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class Draft:
    """What the recipes of ``samples`` samples of one split follow from."""

    request: DataRequest
    split: str
    parts: Sequence[Part]
    samples: int

    @property
    def train_epochs(self) -> float | None:
        """What the samples were counted by, if so."""
        return self.request.train_epochs if self.split == "train" else None

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
        check_members(self.split, paths, tokens, per_epoch, self.request.seq_length)
        return weights_of(
            self.request.settings,
            self.split,
            documents=[part.documents for part in self.parts],
            counts=counts,
            before=before,
            train_epochs=self.train_epochs,
        )

    def _source(self, part: Part, leg: Leg) -> Source:
        """One dataset, its epochs still open."""
        is_whole, labels = isinstance(part.count, WholeCount), part.labels
        settings = self.request.settings
        recipe = IndexRecipe(
            idx_sha256=part.file.fingerprint,
            bin_bytes=part.file.data.tokens.nbytes,
            first_document=part.first,
            stop_document=part.stop,
            tokens_per_epoch=part.tokens,
            epochs=1,
            seq_length=self.request.seq_length,
            seed=self.request.seed,
            order=order_of(settings),
            packing=settings.pack_impl,
            options={"allow_chopped": settings.allow_chopped} if is_whole else {},
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


def _facts_of_labels(labels: Opened) -> str:
    return f"{labels.fingerprint}, {labels.data.tokens.nbytes} bytes"


def plan_split(draft: Draft) -> SplitPlan:
    """The plan of a split; of the training split in the leg that a checkpoint stands in, or the next one.

    Raises:
        DataError: a member of a blend has nothing to give.
    """
    progress = draft.request.progress
    if draft.split != "train" or progress is None or order_of(draft.request.settings) != "epochs":
        return draft.plan(Leg())
    same = draft.plan(progress.leg)
    return same if same.order_key == progress.order_key else draft.plan(progress.next_leg())
