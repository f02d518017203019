"""What a run reads, split by split: token files, their index maps, and the turns that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from megatron.data.facts import DataFacts
from megatron.data.progress import Leg
from megatron.data.recipes import BlendRecipe, IndexRecipe, hash_of

# Facts that all members of a blend share; the others are each member's own.
SHARED_FACTS: Final = ("seq_length", "seed", "order", "packing", "options", "format_version")


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


def describe_difference(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> Sequence[str]:
    """``field: stored → ours`` for each of two :meth:`SplitPlan.order_facts` that differs."""
    names = dict.fromkeys([*stored, *ours])
    return [
        f"{name}: {stored.get(name)} → {ours.get(name)}"
        for name in names
        if stored.get(name) != ours.get(name)
    ]


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
