"""Token files joined, counted and shown: the command lines of `merge_datasets.py`,
`dataset_token_count.py` and `inspect_dataset.py` in tools/datasets/.

A token file is named by its prefix, by either of its two files, or by a folder, which stands for all
token files in it, sorted by name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from megatron.data.indexed_dataset import MMapIndexedDataset, index_file_path, make_dataset
from megatron.errors import DataError
from megatron.logging import configure, get_logger
from megatron.preprocessing.cli import stop_cleanly_on_sigterm
from megatron.preprocessing.output import TokenFileSet
from megatron.tokenizer import TOKENIZER_TYPES, build_tokenizer

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


def merge_datasets(names: Sequence[str], output_prefix: str) -> None:
    """Write the documents of all inputs, in order, as one token file; all or nothing.

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
        if dataset.dtype != datasets[0].dtype:
            raise DataError(
                f"{prefix}: holds {dataset.dtype}, {prefixes[0]} holds {datasets[0].dtype}: token "
                "files of different types cannot be merged; make them anew with the same --dtype"
            )
    with TokenFileSet([output_prefix], datasets[0].dtype) as files:
        for prefix in prefixes:
            files.append_file(prefix)
        files.publish()
    log.info("%s: %s", output_prefix, describe(make_dataset(output_prefix)))


def describe(dataset: MMapIndexedDataset) -> str:
    """What a token file holds, in one line."""
    documents = len(dataset.doc_idx) - 1
    sequences = f" in {len(dataset):,} sequences" if len(dataset) != documents else ""
    return f"{documents:,} documents{sequences}, {dataset.num_tokens:,} tokens ({dataset.dtype})"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def merge_main(arguments: Sequence[str] | None = None) -> int:
    """`merge_datasets.py`."""
    parser = argparse.ArgumentParser(description="Join token files into one.", allow_abbrev=False)
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PREFIX", help="prefixes or folders, in order"
    )
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="what to write")
    parsed = parser.parse_args(arguments)
    configure()
    stop_cleanly_on_sigterm()
    merge_datasets(parsed.input, parsed.output_prefix)
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
        _say(f"{prefix}: {describe(dataset)}")
    if len(prefixes) > 1:
        _say(f"total: {total:,} tokens")
    return 0


def inspect_main(arguments: Sequence[str] | None = None) -> int:
    """`inspect_dataset.py`."""
    parser = argparse.ArgumentParser(
        description="Show documents of a token file as text.", allow_abbrev=False
    )
    parser.add_argument("dataset", metavar="PREFIX", help="the token file")
    parser.add_argument("--document", type=int, default=0, metavar="N", help="the first (from 0)")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--ids", action="store_true", help="show ids instead of text")
    parser.add_argument("--tokenizer-type", metavar="TYPE", help=f"{', '.join(TOKENIZER_TYPES)}")
    parser.add_argument("--vocab-file", metavar="FILE")
    parser.add_argument("--merge-file", metavar="FILE")
    parsed = parser.parse_args(arguments)
    (prefix,) = prefixes_of([parsed.dataset])[:1]
    dataset = make_dataset(prefix)
    documents = len(dataset.doc_idx) - 1
    if not 0 <= parsed.document < documents:
        raise DataError(f"{prefix}: has documents 0 to {documents - 1:,}, not {parsed.document:,}")
    if not parsed.ids and not parsed.tokenizer_type:
        raise DataError("--tokenizer-type is needed to show text; --ids shows ids without one")
    tokenizer = (
        None
        if parsed.ids
        else build_tokenizer(parsed.tokenizer_type, parsed.vocab_file, parsed.merge_file)
    )
    _say(f"{prefix}: {describe(dataset)}")
    for number in range(parsed.document, min(parsed.document + parsed.count, documents)):
        sequences = range(int(dataset.doc_idx[number]), int(dataset.doc_idx[number + 1]))
        ids = [int(token) for i in sequences for token in dataset[i]]
        _say(f"--- document {number}: {len(ids):,} tokens")
        _say(str(ids) if tokenizer is None else tokenizer.detokenize(ids))
    return 0
