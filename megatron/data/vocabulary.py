"""Do the token ids belong to the vocabulary? Asked where they are read, before a model indexes with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from megatron.data.indexed_dataset import MMapIndexedDataset, data_file_path
from megatron.errors import DataError


def check_token_ids(
    data: MMapIndexedDataset,
    first_token: int,
    tokens: npt.NDArray[Any],
    vocab_size: int,
    *,
    are_labels: bool = False,
    everywhere: bool = False,
) -> None:
    """Check ``tokens``, which stand in ``data`` from ``first_token`` on; ``everywhere`` as in NeoXError.

    Raises:
        DataError: one is below 0 (labels may be) or not below ``vocab_size``; says which one and where.
    """
    is_fine = bool(tokens.size == 0 or int(tokens.max()) < vocab_size)
    if is_fine and (are_labels or not tokens.size or int(tokens.min()) >= 0):
        return
    wrong = tokens >= vocab_size if are_labels else (tokens >= vocab_size) | (tokens < 0)
    at = int(np.flatnonzero(wrong)[0])
    place = first_token + at
    document = int(np.searchsorted(data.pointers, place * data.pointer_step, side="right")) - 1
    offset = place - int(data.pointers[document]) // data.pointer_step
    raise DataError(
        f"{data_file_path(data.prefix)}: token {offset} of document {document} has the id "
        f"{int(tokens[at])}\n"
        f"  expected: ids from 0 to {vocab_size - 1}, those of the tokenizer of this run\n"
        "  to do: set tokenizer_type, vocab_file and merge_file to those that made the data, or make "
        "the data anew with this tokenizer",
        everywhere=everywhere,
    )
