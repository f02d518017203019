"""Label files: beside each token of the text, the id to learn at its place, or none.

A label file is a token file with the same documents of the same lengths as its text. A label below 0
(GPT-NeoX's tools write -100) means that nothing is learnt there. As in GPT-NeoX labels stand where the
token stands that they are about: the prediction made after token i is held against label i + 1.
"""

from __future__ import annotations

import numpy as np

from megatron.data.indexed_dataset import MMapIndexedDataset, index_file_path
from megatron.errors import DataError

_PIECE = 1 << 22  # documents compared at once


def check_labels_fit(text: MMapIndexedDataset, labels: MMapIndexedDataset) -> None:
    """Compare the two index files.

    Raises:
        DataError: they do not have the same documents of the same lengths; says where they part.
    """
    where = f"{index_file_path(labels.prefix)}: labels of {index_file_path(text.prefix)}"
    remedy = "to do: make both files in one go from the same text, or name the labels of this text"
    if len(labels) != len(text):
        raise DataError(
            f"{where}\n  found: {len(labels):,} documents\n  expected: {len(text):,}, as in the text\n"
            f"  {remedy}"
        )
    for first in range(0, len(text), _PIECE):
        ours, theirs = (data.sizes[first : first + _PIECE] for data in (text, labels))
        wrong = np.flatnonzero(ours != theirs)
        if wrong.size:
            at = int(wrong[0])
            raise DataError(
                f"{where}\n  found: {int(theirs[at]):,} labels for document {first + at:,}\n"
                f"  expected: {int(ours[at]):,}, one for each token\n  {remedy}"
            )
