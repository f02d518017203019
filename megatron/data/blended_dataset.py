"""A blend as a sequence of samples: the turns of :mod:`megatron.data.blend` over its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatron.data.blend import given_after
from megatron.data.sample_dataset import Sample, SampleDataset
from megatron.data.stored_arrays import BlendMaps, StoredArrays
from megatron.errors import DataError


class BlendedDataset:
    """Samples of several datasets, by turns. Can be pickled.

    Args:
        members: the datasets, at least one.
        maps: their turns.
        units: their weights, of which the turns are made.
        samples: how many there are, those before ``start`` included.
        start: the sample of the first turn; those before it were read of another blend.
        before: samples that each member gave until then; by default none.

    Attributes:
        given: samples that each member gives from ``start`` on, ``[members]``.

    Raises:
        DataError: a member has fewer samples than its turns; none is ever read from the start again.
    """

    def __init__(
        self,
        members: Sequence[SampleDataset],
        maps: BlendMaps,
        *,
        units: Sequence[int],
        samples: int,
        start: int = 0,
        before: Sequence[int] | None = None,
    ) -> None:
        self.members = tuple(members)
        self.maps = maps
        self.units = tuple(units)
        self.name = members[0].name
        self.seq_length = members[0].seq_length
        self.vocab_size = members[0].vocab_size
        self.has_labels = members[0].has_labels
        self._samples, self._start = samples, start
        self._period = sum(units)
        self._before = np.zeros(len(units), np.int64) if before is None else np.array(before)
        self.given = given_after(units, maps.member_idx, max(0, samples - start))
        for member, count in zip(members, self.given_at(samples), strict=True):
            if count > len(member):
                raise DataError(
                    f"{member.data.prefix}: runs out: {count:,} of the {samples:,} samples of the "
                    f"{self.name} blend are its own, its index has {len(member):,}\n"
                    f"  to do: remove the index folder {member.maps.folder}, it is built again"
                )

    def __len__(self) -> int:
        return self._samples

    @property
    def label(self) -> str:
        """What it is, for messages."""
        return f"the {self.name} blend of {len(self.members)} datasets"

    @property
    def stored(self) -> tuple[StoredArrays, ...]:
        """All index folders behind it."""
        return (self.maps, *(member.maps for member in self.members))

    def __getitem__(self, index: int | np.integer[Any]) -> Sample:
        member, number = self.locate(index)
        return self.members[member][number]

    def read_into(self, index: int | np.integer[Any], out: Sample) -> None:
        """Write sample ``index`` into ``out``.

        Raises:
            IndexError: there is no such sample.
        """
        member, number = self.locate(index)
        self.members[member].read_into(number, out)

    def given_at(self, consumed: int) -> tuple[int, ...]:
        """Samples that each member has given when ``consumed`` of the run have been read."""
        turns = max(0, consumed - self._start)
        given = self._before + given_after(self.units, self.maps.member_idx, turns)
        return tuple(given.tolist())

    def check_ids(self, index: int) -> None:
        """Raise the :class:`DataError` of the first id in sample ``index`` that is beyond the vocabulary."""
        member, number = self.locate(index)
        self.members[member].check_ids(number)

    def locate(self, index: int | np.integer[Any]) -> tuple[int, int]:
        """Whose sample it is, and which of its own.

        Raises:
            IndexError: there is no such sample.
        """
        if not self._start <= index < self._samples:
            since = f" from {self._start} on" if self._start else ""
            raise IndexError(
                f"sample {int(index)} of {self.label}, which has {self._samples}{since}"
            )
        period, turn = divmod(int(index) - self._start, self._period)
        member = int(self.maps.member_idx[turn])
        number = int(self._before[member]) + int(self.maps.count_idx[turn])
        return member, number + period * self.units[member]
