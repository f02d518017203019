"""How many samples each split has to give, and which documents it is made of: pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from megatron.errors import DataError

SPLIT_NAMES: Final = ("train", "valid", "test")


@dataclass(frozen=True)
class SampleCounts:
    """Samples that the whole run takes from each split; 0 where the split is not used."""

    train: int
    valid: int
    test: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.train, self.valid, self.test))


def samples_wanted(
    train_iters: int, eval_interval: int, eval_iters: int, global_batch_size: int
) -> SampleCounts:
    """What a run of ``train_iters`` steps takes, an evaluation at its end included.

    Validation reads ``eval_iters`` batches at each multiple of ``eval_interval`` and once after the
    last step; the test split is read once.
    """
    evaluations = train_iters // eval_interval + 1
    return SampleCounts(
        train=train_iters * global_batch_size,
        valid=evaluations * eval_iters * global_batch_size,
        test=eval_iters * global_batch_size,
    )


def split_boundaries(split: str, num_documents: int) -> list[int]:
    """The document that each split starts at, and the end of the last: ``[0, a, b, c]``.

    ``split`` is up to three shares of train, valid and test, such as ``969,30,1``, which need not
    add up to anything. Documents are rounded as GPT-NeoX rounds them, so that the same string
    means the same documents: what rounding gives too much or too little at the end moves every
    boundary but the first.

    Raises:
        DataError: a share is no number from 0 on, there are more than three, or all are 0.
    """
    shares = _shares(split)
    total = sum(shares)
    ends = accumulate(round(share / total * num_documents) for share in shares)
    boundaries = [0, *ends]
    excess = boundaries[-1] - num_documents
    return [0, *(max(0, boundary - excess) for boundary in boundaries[1:])]


def is_left_out(split: str, name: str) -> bool:
    """Whether ``name``, one of the two held-out splits, has the share 0 where the other has not.

    Then it is not missed: ``90,10,0`` asks for no test split. With ``1,0,0`` nothing would be evaluated
    at all, which deserves a word.
    """
    if name not in SPLIT_NAMES[1:]:
        return False
    own, other = SPLIT_NAMES.index(name), 3 - SPLIT_NAMES.index(name)
    shares = _shares(split)
    return shares[own] == 0 and shares[other] > 0


def _shares(split: str) -> list[float]:
    try:
        # GPT-NeoX also takes slashes between the shares.
        shares = [float(text) for text in str(split).replace("/", ",").split(",")]
    except ValueError:
        shares = []
    sound = 1 <= len(shares) <= 3 and all(math.isfinite(share) and share >= 0 for share in shares)
    if not sound or sum(shares) == 0:
        raise DataError(
            f"split: {split!r} is not one to three shares for train, valid and test, none below 0 and "
            "not all 0, such as 969,30,1"
        )
    return shares + [0.0] * (3 - len(shares))
