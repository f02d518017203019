"""One split as a sequence of samples: the token files read through the index maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from megatron.data.indexed_dataset import MMapIndexedDataset
from megatron.data.stored_arrays import IndexMaps, StoredArrays
from megatron.data.vocabulary import check_token_ids

NO_LABEL: Final = -100  # in a label file: nothing is learnt here


@dataclass(slots=True)
class Sample:
    """One sample. Reading fills its arrays, which may be rows of a batch; s = ``seq_length``.

    Attributes:
        tokens: ``[s + 1]`` int64.
        labels: ``[s + 1]`` int64, what should have been predicted at each token's place, or
            :data:`NO_LABEL`; None where the tokens are their own labels.
        length: tokens before the padding, at most s + 1.
        starts: the places where its documents begin are put in there, from 0 on; padding goes with
            the last one. None where nobody asks.
    """

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64] | None = None
    length: int = 0
    starts: list[int] | None = None


class Samples(Protocol):
    """One split as a run reads it: of one token file, or a blend of several."""

    name: str
    seq_length: int
    vocab_size: int | None
    has_labels: bool

    def __len__(self) -> int: ...
    def __getitem__(self, index: int | np.integer[Any], /) -> Sample: ...
    def read_into(self, index: int | np.integer[Any], out: Sample) -> None: ...
    def check_ids(self, index: int) -> None: ...
    def given_at(self, consumed: int) -> tuple[int, ...]: ...
    @property
    def label(self) -> str: ...
    @property
    def stored(self) -> tuple[StoredArrays, ...]: ...


class SampleDataset:
    """The samples of one split in the order in which the run takes them.

    Can be pickled: what is sent is where the files are.
    """

    def __init__(
        self,
        data: MMapIndexedDataset,
        maps: IndexMaps,
        *,
        seq_length: int,
        name: str,
        vocab_size: int | None = None,
        pad_id: int = 0,
        labels: MMapIndexedDataset | None = None,
    ) -> None:
        self.name = name
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.data = data
        self.labels = labels
        self.has_labels = labels is not None
        self.maps = maps
        self.pad_id = pad_id
        self.is_packed = maps.manifest["recipe"]["packing"] == "packed"
        self._pointer_step = data.pointer_step

    def __len__(self) -> int:
        return len(self.maps.shuffle_idx)

    @property
    def label(self) -> str:
        """What it is, for messages."""
        return f"the {self.name} split of {self.data.prefix}"

    @property
    def stored(self) -> tuple[StoredArrays, ...]:
        """All index folders behind it."""
        return (self.maps,)

    def __getitem__(self, index: int | np.integer[Any]) -> Sample:
        tokens = np.empty(self.seq_length + 1, np.int64)
        sample = Sample(tokens, np.empty_like(tokens) if self.has_labels else None)
        self.read_into(index, sample)
        return sample

    def read_into(self, index: int | np.integer[Any], out: Sample) -> None:
        """Write sample ``index`` into ``out``, which has room for labels if there are any.

        Raises:
            IndexError: there is no such sample.
        """
        stop, pieces = 0, self.pieces(index)
        for at, first, count in pieces:
            stop = at + count
            out.tokens[at:stop] = self.data.tokens[first : first + count]
        if stop <= self.seq_length:
            out.tokens[stop:] = self.pad_id
        out.length = stop
        if out.starts is not None:
            out.starts[:] = [at for at, _, _ in pieces]

        if self.labels is not None:
            assert out.labels is not None
            for at, first, count in pieces:
                out.labels[at : at + count] = self.labels.tokens[first : first + count]
            out.labels[stop:] = NO_LABEL

    def given_at(self, consumed: int) -> tuple[int, ...]:
        """Samples that each dataset has given when ``consumed`` have been read: of one, all."""
        return (consumed,)

    def check_ids(self, index: int) -> None:
        """Raise the :class:`DataError` of the first id in sample ``index`` that is beyond the vocabulary."""
        if self.vocab_size is None:
            return
        for _, first, count in self.pieces(index):
            found = self.data.tokens[first : first + count]
            check_token_ids(self.data, first, found, self.vocab_size)
            if self.labels is not None:
                found = self.labels.tokens[first : first + count]
                check_token_ids(self.labels, first, found, self.vocab_size, are_labels=True)

    def pieces(self, index: int | np.integer[Any]) -> list[tuple[int, int, int]]:
        """Where sample ``index`` comes from: (place in the sample, first token of the file, tokens).

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"sample {int(index)} of the {self.name} split, which has {len(self)}")
        maps, sizes, pointers = self.maps, self.data.sizes, self.data.pointers
        row = int(maps.shuffle_idx[index])
        position, offset = maps.sample_idx[row].tolist()
        # The stream of packed documents fills every sample; whole ones end where the next sample begins.
        end = None if self.is_packed else int(maps.sample_idx[row + 1, 0])
        found, at, length = [], 0, self.seq_length + 1
        while at < length and position != end:
            document = int(maps.doc_idx[position])
            count = min(int(sizes[document]) - offset, length - at)
            if count:
                found.append((at, int(pointers[document]) // self._pointer_step + offset, count))
                at += count
            position, offset = position + 1, 0
        return found
