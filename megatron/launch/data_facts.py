"""What the token files of a run hold, read from their headers: nothing is built, torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from megatron.data.index_maps import samples_in, samples_of_epochs
from megatron.data.indexed_dataset import MMapIndexedDataset
from megatron.data.splits import SPLIT_NAMES, samples_wanted, split_boundaries
from megatron.errors import DataError
from megatron.monitor.console import SplitFacts
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.sections import DataArgs

_NOT_COUNTED: Final = "pack_impl: {}: samples are counted when the run starts"


@dataclass(frozen=True)
class DataPage:
    """What could be found out.

    Attributes:
        splits: by name, those that hold something.
        train_iters: of the run, given or following from ``train_epochs``; None where neither says.
        lines: what could not be read, and what is empty.
    """

    splits: tuple[SplitFacts, ...]
    train_iters: int | None
    lines: tuple[str, ...]


def data_page(args: NeoXArgs, batch: BatchSizes | None) -> DataPage:
    """Look at the token files that ``args`` name, as far as they are there."""
    data, steps = args.data, args.training.train_iters
    lines = [text.replace("\n", "; ") for text in data_problems(data).values()]
    if data.pack_impl != "packed":
        return DataPage((), steps, (*lines, _NOT_COUNTED.format(data.pack_impl)))
    sizes: dict[str, tuple[int, int, int]] = {}
    for name in SPLIT_NAMES:
        try:
            found = _size_of(data, name, args.model.seq_length)
        except DataError:
            continue  # one of data_problems
        if found is not None:
            sizes[name] = found
            meant = name == "train" or args.training.eval_iters
            if data.data_path and data.shares[SPLIT_NAMES.index(name)] == 0:
                meant = False
            if found[2] == 0 and meant:
                lines.append(f"the {name} split has {found[1]:,} tokens: not one whole sample")
    if steps is None and args.training.train_epochs is not None and batch and "train" in sizes:
        epochs, length = args.training.train_epochs, args.model.seq_length
        samples = sum(  # each file by itself, as the run counts
            samples_of_epochs(tokens, length, epochs, data.data_order)
            for _, tokens in _files_of(data, "train")
        )
        steps = samples // batch.global_batch_size
    return DataPage(_facts(args, batch, sizes, steps), steps, tuple(dict.fromkeys(lines)))


def data_problems(data: DataArgs) -> dict[str, str]:
    """Each token or label file that a run could not read, and what the run would say about it."""
    # All are opened, whichever splits are wanted.
    keys = [f"{name}_{kind}" for kind in ("data_paths", "label_data_paths") for name in SPLIT_NAMES]
    given = [data.data_path, *(path for key in keys for path in getattr(data, key) or ())]
    problems = {}
    for prefix in dict.fromkeys(filter(None, given)):
        try:
            MMapIndexedDataset(prefix)
        except DataError as error:
            problems[prefix] = str(error)
    return problems


def _size_of(data: DataArgs, split: str, seq_length: int) -> tuple[int, int, int] | None:
    """Documents, tokens and whole samples an epoch of one split; None where no files are named.

    Raises:
        DataError: a file is missing or damaged.
    """
    files = _files_of(data, split)
    documents, tokens = sum(d for d, _ in files), sum(t for _, t in files)
    samples = sum(samples_in(t, seq_length, 1) for _, t in files)
    return (documents, tokens, samples) if files else None


def _files_of(data: DataArgs, split: str) -> list[tuple[int, int]]:
    """Documents and tokens that one split has of each of its files.

    Raises:
        DataError: a file is missing or damaged.
    """
    found = []
    paths = (data.data_path,) if data.data_path else getattr(data, f"{split}_data_paths") or ()
    for path in paths:
        file = MMapIndexedDataset(path)
        first, stop = 0, len(file)
        if data.data_path:
            number = SPLIT_NAMES.index(split)
            first, stop = split_boundaries(data.split, len(file))[number : number + 2]
        found.append((stop - first, file.tokens_between(first, stop)))
    return found


def _facts(
    args: NeoXArgs,
    batch: BatchSizes | None,
    sizes: dict[str, tuple[int, int, int]],
    steps: int | None,
) -> tuple[SplitFacts, ...]:
    training = args.training
    wanted = (0, 0, 0)
    if batch is not None and steps is not None:
        counts = samples_wanted(
            steps, training.eval_interval, training.eval_iters, batch.global_batch_size
        )
        wanted = (counts.train, counts.valid, counts.test)
    return tuple(
        SplitFacts(name, *sizes[name], samples_wanted=samples)
        for name, samples in zip(SPLIT_NAMES, wanted, strict=True)
        if name in sizes and sizes[name][2]
    )
