"""A blend as a sequence of samples: the turns of :mod:`megatron.data.blend` over its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatron.data.blend import given_after
from megatron.data.index_store import BlendMaps, StoredArrays
from megatron.data.sample_dataset import Sample, SampleDataset
from megatron.errors import DataError


class BlendedDataset:
    """Samples of several datasets, by turns. Can be pickled.

    Args:
        members: the datasets, at least one.
        maps: their turns.
        units: their weights, of which the turns are made.
        samples: how many there are.

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
    ) -> None:
        self.members = tuple(members)
        self.maps = maps
        self.units = tuple(units)
        self.name = members[0].name
        self.seq_length = members[0].seq_length
        self.vocab_size = members[0].vocab_size
        self._samples = samples
        self._period = sum(units)
        self.given = given_after(units, maps.member_idx, samples)
        for member, count in zip(members, self.given.tolist(), strict=True):
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

    def check_ids(self, index: int) -> None:
        """Raise the :class:`DataError` of the first id in sample ``index`` that is beyond the vocabulary."""
        member, number = self.locate(index)
        self.members[member].check_ids(number)

    def locate(self, index: int | np.integer[Any]) -> tuple[int, int]:
        """Whose sample it is, and which of its own.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < self._samples:
            raise IndexError(f"sample {int(index)} of {self.label}, which has {self._samples}")
        period, turn = divmod(int(index), self._period)
        member = int(self.maps.member_idx[turn])
        return member, int(self.maps.count_idx[turn]) + period * self.units[member]
