"""Numbers about the data of a run, for people: what each split holds and how much of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
