"""Token files joined and counted: the command lines of `merge_datasets.py` and
`dataset_token_count.py` in tools/datasets/.

A token file is named by its prefix, by either of its two files, or by a folder, which stands for all
token files in it, sorted by name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np

from megatron.data.indexed_dataset import MMapIndexedDataset, index_file_path, make_dataset
from megatron.errors import DataError
from megatron.logging import configure, get_logger
from megatron.preprocessing.cli import stop_cleanly_on_sigterm
from megatron.preprocessing.output import new_token_file

log = get_logger(__name__)

_ENDINGS = (".bin", ".idx")


def prefixes_of(names: Sequence[str]) -> list[str]:
    """The prefixes that ``names`` stand for, in order.

    Raises:
        DataError: a folder holds no token file.
    """
    prefixes: list[str] = []
    for name in names:
        if os.path.isdir(name):
            entries = sorted(os.listdir(name))
            below = [os.path.join(name, e[:-4]) for e in entries if e.endswith(".idx")]
            if not below:
                raise DataError(f"{name}: holds no token file (.idx)")
            prefixes += below
        else:
            prefixes.append(name[:-4] if name.endswith(_ENDINGS) else name)
    return prefixes


def merge_datasets(names: Sequence[str], output_prefix: str, *, widen: bool = False) -> None:
    """Write the documents of all inputs, in order, as one token file; all or nothing.

    Args:
        names: prefixes or folders.
        output_prefix: what to write.
        widen: where types differ, take the narrowest whole-number type that holds all of them.

    Raises:
        DataError: there are no inputs, their types differ, or the output is one of them.
    """
    prefixes = prefixes_of(names)
    datasets = [make_dataset(prefix) for prefix in prefixes]
    output = os.path.realpath(index_file_path(output_prefix))
    for prefix, dataset in zip(prefixes, datasets, strict=True):
        if os.path.realpath(index_file_path(prefix)) == output:
            raise DataError(
                f"{output_prefix}: is an input as well; give --output-prefix another name"
            )
        are_numbers = {dataset.dtype.kind, datasets[0].dtype.kind} <= {"i", "u"}
        if dataset.dtype != datasets[0].dtype and widen and not are_numbers:
            raise DataError(
                f"{prefix}: holds {dataset.dtype}, {prefixes[0]} holds {datasets[0].dtype}: only whole "
                "numbers can be widened"
            )
        if dataset.dtype != datasets[0].dtype and not widen:
            raise DataError(
                f"{prefix}: holds {dataset.dtype}, {prefixes[0]} holds {datasets[0].dtype}: token "
                "files of different types cannot be merged; --widen makes them one, or make them anew "
                "with the same --dtype"
            )
    dtype = np.result_type(*(dataset.dtype for dataset in datasets))
    with new_token_file(output_prefix, dtype) as builder:
        for prefix in prefixes:
            builder.merge_file_(prefix, widen=widen)
    log.info("%s: %s", output_prefix, describe(make_dataset(output_prefix)))


def describe(dataset: MMapIndexedDataset) -> str:
    """What a token file holds, in one line."""
    documents = len(dataset.doc_idx) - 1
    sequences = f" in {len(dataset):,} sequences" if len(dataset) != documents else ""
    return f"{documents:,} documents{sequences}, {dataset.num_tokens:,} tokens ({dataset.dtype})"


def say(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(text + "\n")


def merge_main(arguments: Sequence[str] | None = None) -> int:
    """`merge_datasets.py`."""
    parser = argparse.ArgumentParser(description="Join token files into one.", allow_abbrev=False)
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PREFIX", help="prefixes or folders, in order"
    )
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="what to write")
    parser.add_argument(
        "--widen",
        action="store_true",
        help="files of different types become one of the narrowest type that holds all of them",
    )
    parsed = parser.parse_args(arguments)
    configure()
    stop_cleanly_on_sigterm()
    merge_datasets(parsed.input, parsed.output_prefix, widen=parsed.widen)
    return 0


def count_main(arguments: Sequence[str] | None = None) -> int:
    """`dataset_token_count.py`."""
    parser = argparse.ArgumentParser(
        description="Say what token files hold: documents, tokens, type.", allow_abbrev=False
    )
    parser.add_argument("datasets", nargs="+", metavar="PREFIX", help="prefixes or folders")
    parsed = parser.parse_args(arguments)
    prefixes = prefixes_of(parsed.datasets)
    total = 0
    for prefix in prefixes:
        dataset = make_dataset(prefix)
        total += dataset.num_tokens
        say(f"{prefix}: {describe(dataset)}")
    if len(prefixes) > 1:
        say(f"total: {total:,} tokens")
    return 0
