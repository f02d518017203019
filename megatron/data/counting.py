"""How many samples epochs of a dataset give, and how many epochs samples need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from megatron.data.index_maps import Order, epochs_needed, samples_in, samples_of_epochs
from megatron.data.index_store import IndexStore
from megatron.data.whole_documents import WholeDocuments

_MOST_REMEMBERED: Final = 10_000  # epochs


class SampleCount(Protocol):
    """The samples of one dataset in its order."""

    @property
    def per_epoch(self) -> int:
        """Whole samples in the first epoch."""
        ...

    def in_epochs(self, epochs: float) -> int:
        """Whole samples in so many epochs, a fraction of one included."""
        ...

    def epochs_for(self, samples: int) -> int:
        """The fewest epochs, at least 1, that give ``samples``."""
        ...


@dataclass(frozen=True)
class PackedCount:
    """Samples cut from the stream of all documents: arithmetic.

    Attributes:
        tokens: of one epoch.
        seq_length: tokens from the start of one sample to the start of the next.
        order: ``neox`` or ``epochs``.
    """

    tokens: int
    seq_length: int
    order: Order

    @property
    def per_epoch(self) -> int:
        return samples_in(self.tokens, self.seq_length, 1)

    def in_epochs(self, epochs: float) -> int:
        return samples_of_epochs(self.tokens, self.seq_length, epochs, self.order)

    def epochs_for(self, samples: int) -> int:
        return epochs_needed(self.tokens, self.seq_length, samples, self.order)


class WholeCount:
    """Samples of whole documents: counted once, remembered in the store.

    Args:
        documents: how they become samples.
        fingerprint: of the token file.
        sizes: reads ``[documents]`` tokens of each document of the split.
        store: what remembers.
    """

    def __init__(
        self,
        documents: WholeDocuments,
        fingerprint: str,
        sizes: Callable[[], npt.NDArray[np.int32]],
        store: IndexStore,
    ) -> None:
        self._documents, self._read_sizes, self._store = documents, sizes, store
        self._facts = asdict(documents) | {"idx_sha256": fingerprint}
        self._counts: list[int] | None = None

    def counts(self, epochs: int) -> tuple[int, ...]:
        """Samples of each of the first ``epochs`` epochs."""
        if self._counts is None:
            self._counts = self._store.recall("counts", self._facts) or []
        if len(self._counts) < epochs:
            self._count(epochs)
        return tuple(self._counts[:epochs])

    def _count(self, epochs: int) -> None:
        assert self._counts is not None
        sizes = self._read_sizes()
        kept = self._documents.kept(sizes)
        if self._documents.packing == "unpacked":
            self._counts = [len(kept)] * epochs
        while len(self._counts) < epochs:
            self._counts.append(self._documents.samples_of(kept, sizes, len(self._counts)))
        self._store.remember("counts", self._facts, self._counts[:_MOST_REMEMBERED])

    @property
    def per_epoch(self) -> int:
        return self.counts(1)[0]

    def in_epochs(self, epochs: float) -> int:
        exact = Fraction(str(epochs))
        whole = int(exact)
        rest = exact - whole
        last = int(rest * self.counts(whole + 1)[-1]) if rest else 0
        return sum(self.counts(whole)) + last

    def epochs_for(self, samples: int) -> int:
        if self.per_epoch == 0:
            return 1
        epochs = 1
        while (found := sum(self.counts(epochs))) < samples:
            epochs += max(1, (samples - found) // (2 * self.per_epoch))
        totals = accumulate(self.counts(epochs))
        return next(number for number, total in enumerate(totals, start=1) if total >= samples)
